-- How much log does the slot keep, and how many rows wait for a decision?
select
    coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::float8,
    (select count(*) from onceward.outbox_parked where state = 'parked' and reason <> 'follows')
from pg_replication_slots
where slot_name = %s
