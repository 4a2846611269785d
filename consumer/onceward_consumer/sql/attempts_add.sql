insert into onceward.attempts (command_id, consumer_group, attempt, outcome, reason, error, worker)
select v.id, %(group)s, v.attempt, v.outcome, v.reason, v.error, %(worker)s
from unnest(%(ids)s::uuid[], %(attempts)s::int[], %(outcomes)s::text[], %(reasons)s::text[], %(errors)s::text[])
    as v (id, attempt, outcome, reason, error)
on conflict do nothing
