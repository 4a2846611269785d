-- What waits in the outbox, and who relays it? A streaming relay holds the slot, a polling one the lock of lead.sql.
select
    %(slot)s::text as slot,
    case
        when slot.active then 'streaming'
        when exists (
            select
            from pg_locks
            where locktype = 'advisory'
                and granted
                and database = (select oid from pg_database where datname = current_database())
                and classid::bigint = hashtext('onceward.relay')::bigint & 4294967295
                and objid::bigint = hashtext(%(slot)s)::bigint & 4294967295
        ) then 'polling'
    end as relay,
    (select count(*) from onceward.outbox) as pending,
    (
        select extract(epoch from clock_timestamp() - created_at)::float8
        from onceward.outbox
        order by seq
        limit 1
    ) as oldest_seconds,
    slot.wal_status,
    pg_wal_lsn_diff(pg_current_wal_lsn(), slot.restart_lsn)::bigint as retained_bytes,
    parked.refused as parked,
    parked.following
from (
    select
        count(*) filter (where reason <> 'follows') as refused,
        count(*) filter (where reason = 'follows') as following
    from onceward.outbox_parked
    where state in ('parked', 'replaying')
) as parked
left join pg_replication_slots as slot on slot.slot_name = %(slot)s and slot.database = current_database()
