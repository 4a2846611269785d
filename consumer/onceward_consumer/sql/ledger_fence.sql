-- Which of the external commands that this worker ran are still its own.
select l.command_id
from onceward.ledger l
join unnest(%(ids)s::uuid[], %(attempts)s::int[]) as v (id, attempt) on v.id = l.command_id
where l.consumer_group = %(group)s and l.command_id = any(%(ids)s::uuid[])
    and l.state = 'running' and l.incarnation = %(incarnation)s and l.attempt = v.attempt
order by l.command_id
for no key update of l
