-- What a keeper found: the state, and when to look again.
update onceward.runs as run set
    state = found.state,
    progressed_at = case when found.progressed then clock_timestamp() else run.progressed_at end,
    completed_at = case when found.state in ('completed', 'completed_with_errors') then clock_timestamp() end,
    follow_up_id = coalesce(run.follow_up_id, found.follow_up_id),
    check_after = clock_timestamp() + make_interval(secs => found.wait_seconds)
from unnest(%(ids)s::uuid[], %(states)s::text[], %(progressed)s::bool[], %(follow_up_ids)s::uuid[], %(waits)s::float8[])
    as found (id, state, progressed, follow_up_id, wait_seconds)
where run.id = found.id
