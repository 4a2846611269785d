-- Open runs whose turn it is, locked for this keeper. NO KEY: a worker that only refers to a run is not in the way.
select id, kind, state, follow_up, follow_up_id is not null as followed_up,
    extract(epoch from clock_timestamp() - progressed_at)::float8 as idle_seconds
from onceward.runs
where state in ('queued', 'running') and check_after <= clock_timestamp()
order by check_after
limit %(limit)s
for no key update skip locked
