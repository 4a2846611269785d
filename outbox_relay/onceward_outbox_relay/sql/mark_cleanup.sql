-- Rows of transactions before `xmin` were committed before this position of the log, if ever. Nothing when there are none.
select pg_snapshot_xmin(pg_current_snapshot())::text, pg_current_wal_insert_lsn()::text
where exists (select from {table} where {xid} < pg_snapshot_xmin(pg_current_snapshot()))
