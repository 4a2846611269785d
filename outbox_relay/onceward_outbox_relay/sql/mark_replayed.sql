-- Kafka has these rows.
update onceward.outbox_parked
set state = 'replayed', updated_at = now()
where seq = any (%s) and state in ('parked', 'replaying')
