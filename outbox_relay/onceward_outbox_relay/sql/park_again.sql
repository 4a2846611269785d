-- A replay was refused.
update onceward.outbox_parked
set state = 'parked', reason = %s, error = %s, updated_at = now()
where seq = %s and state in ('parked', 'replaying')
