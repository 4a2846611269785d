-- Claimed and not begun: whoever gets the record next runs it as the same attempt.
update onceward.ledger set incarnation = null, updated_at = now()
where consumer_group = %s and command_id = any(%s::uuid[]) and state = 'running' and incarnation = %s
