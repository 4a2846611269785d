-- Released commands that wait for something else now; their keys go on without them.
update onceward.parked p set reason = v.reason
from unnest(%s::uuid[], %s::text[]) as v (id, reason)
where p.consumer_group = %s and p.command_id = v.id
