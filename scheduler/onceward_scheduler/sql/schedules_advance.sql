update onceward.schedules as schedule set
    next_at = moved.next_at,
    due_at = case when moved.wait_seconds is null then moved.next_at
        else clock_timestamp() + make_interval(secs => moved.wait_seconds) end,
    last_at = coalesce(moved.last_at, schedule.last_at),
    failures = case when moved.wait_seconds is null then 0 else schedule.failures + 1 end,
    updated_at = clock_timestamp()
from unnest(
    %(ids)s::text[], %(next_at)s::timestamptz[], %(last_at)s::timestamptz[], %(wait_seconds)s::float8[]
) as moved (id, next_at, last_at, wait_seconds)
where schedule.app = %(app)s and schedule.id = moved.id
