-- Parked commands whose records are on their way again, as the same attempt.
update onceward.ledger set state = 'retrying', reason = null, updated_at = now()
where consumer_group = %s and command_id = any(%s::uuid[]) and state = 'parked'
returning command_id
