-- What became of commands that already have a row. The second condition lets the planner prune partitions.
update onceward.ledger l set
    state = v.state, attempt = v.attempt, attempts_before = v.attempts_before, reason = v.reason,
    incarnation = v.incarnation,
    first_failed_at = case when v.failed then coalesce(l.first_failed_at, now()) else l.first_failed_at end,
    updated_at = now()
from unnest(%(ids)s::uuid[], %(states)s::text[], %(attempts)s::int[], %(before)s::int[], %(reasons)s::text[],
    %(incarnations)s::uuid[], %(failed)s::bool[])
    as v (id, state, attempt, attempts_before, reason, incarnation, failed)
where l.command_id = v.id and l.consumer_group = %(group)s and l.command_id = any(%(ids)s::uuid[])
