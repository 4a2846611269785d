-- How is the slot?
select plugin, database, wal_status, active_pid, confirmed_flush_lsn::text
from pg_replication_slots
where slot_name = %s
