select id, partition, next_at, last_at, failures, clock_timestamp() as now
from onceward.schedules
where app = %(app)s and partition = any(%(partitions)s::int[]) and id = any(%(known)s::text[])
    and due_at <= clock_timestamp() and paused_because is null and undeclared_at is null
order by due_at
limit %(limit)s
