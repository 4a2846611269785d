-- May this role stream from this server?
select
    current_setting('wal_level'),
    rolreplication or rolsuper,
    rolname
from pg_roles
where rolname = current_user
