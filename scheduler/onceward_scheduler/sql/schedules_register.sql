insert into onceward.schedules as known (app, id, partition, rule, next_at, due_at)
select %(app)s, given.id, given.partition, given.rule, given.next_at, given.next_at
from unnest(%(ids)s::text[], %(partitions)s::int[], %(rules)s::jsonb[], %(next_at)s::timestamptz[])
    as given (id, partition, rule, next_at)
on conflict (app, id) do update set
    partition = excluded.partition, rule = excluded.rule, next_at = excluded.next_at, undeclared_at = null,
    due_at = case when known.next_at = excluded.next_at then known.due_at else excluded.due_at end,
    failures = case when known.next_at = excluded.next_at then known.failures else 0 end,
    updated_at = clock_timestamp()
