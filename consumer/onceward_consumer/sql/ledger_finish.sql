-- External commands that simply ended well, if they are still this worker's own. The last condition lets the planner prune.
update onceward.ledger l set state = 'done', incarnation = null, updated_at = now()
from unnest(%(ids)s::uuid[], %(attempts)s::int[]) as v (id, attempt)
where l.command_id = v.id and l.attempt = v.attempt and l.consumer_group = %(group)s and l.state = 'running'
    and l.incarnation = %(incarnation)s and l.command_id = any(%(ids)s::uuid[])
returning l.command_id
