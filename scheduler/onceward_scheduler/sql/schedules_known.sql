select id, partition, rule, next_at, undeclared_at, clock_timestamp() as now,
    undeclared_at < clock_timestamp() - interval '5 minutes' as long_undeclared
from onceward.schedules where app = %(app)s
