-- End another session of this worker's, and wait for its end; not one that got the same process id since.
select pg_terminate_backend(pid, 2000)
from pg_stat_activity
where pid = %s and datname = current_database() and usename = current_user
    and application_name = current_setting('application_name')
