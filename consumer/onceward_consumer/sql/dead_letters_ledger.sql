-- Moves ledger rows from dead to `state`. A row that retention has dropped comes back; one in another state is left alone
-- and not returned. A replay (`step` 1) is a further attempt with a budget of its own.
insert into onceward.ledger as known (command_id, consumer_group, state, attempt, attempts_before)
select id, consumer_group, %(state)s, attempts + %(step)s, attempts * %(step)s
from unnest(%(ids)s::uuid[], %(groups)s::text[], %(attempts)s::int[]) as letter (id, consumer_group, attempts)
order by id, consumer_group
on conflict (command_id, consumer_group) do update set
    state = excluded.state, attempt = known.attempt + %(step)s,
    attempts_before = case %(step)s when 1 then known.attempt else known.attempts_before end,
    reason = null, incarnation = null, first_failed_at = null, updated_at = now()
where known.state = 'dead'
returning consumer_group, command_id, attempt
