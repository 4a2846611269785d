-- Seconds until the next schedule is due; null when none will be.
select extract(epoch from min(due_at) - clock_timestamp())::float8
from onceward.schedules
where app = %(app)s and partition = any(%(partitions)s::int[]) and id = any(%(known)s::text[])
    and due_at is not null and paused_because is null and undeclared_at is null
