-- What the ledger says of commands that it has seen; locked, so that one worker decides.
select l.command_id, l.state, l.attempt, l.attempts_before, l.first_failed_at, l.incarnation,
    exists (select from onceward.workers w where w.incarnation = l.incarnation and w.lease_until > now()) as alive
from onceward.ledger l
where l.consumer_group = %s and l.command_id = any(%s::uuid[])
order by l.command_id
for no key update of l
