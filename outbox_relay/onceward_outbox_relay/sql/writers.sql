-- Which open transactions have written?
select pid, coalesce(nullif(application_name, ''), usename, 'unknown'), extract(epoch from now() - xact_start)::float8
from pg_stat_activity
where backend_xid is not null and pid <> pg_backend_pid()
order by xact_start
limit 5
