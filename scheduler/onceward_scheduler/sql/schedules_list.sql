select app, id, rule ->> 'rule' as rule, rule ->> 'tz' as tz, partition, next_at, due_at, last_at, failures,
    paused_because, undeclared_at, due_at < clock_timestamp() - interval '10 seconds' as overdue
from onceward.schedules
where (%(app)s::text is null or app = %(app)s)
order by app, id
limit %(limit)s
