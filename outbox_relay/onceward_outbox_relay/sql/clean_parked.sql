delete from onceward.outbox_parked
where ctid = any (array(
    select ctid from onceward.outbox_parked
    where state in ('replayed', 'discarded') and updated_at < now() - interval '30 days' limit 5000))
