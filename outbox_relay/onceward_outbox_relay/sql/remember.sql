update onceward.relay_slots
set acknowledged = greatest(acknowledged, %s::pg_lsn), updated_at = now()
where slot = %s
