-- Holds that are left after holds_remove have followers to be run.
update onceward.holds h set state = 'draining', incarnation = null, due_at = null, updated_at = now()
from unnest(%s::text[], %s::text[]) as done (lane, key)
where h.consumer_group = %s and h.lane = done.lane and h.key = done.key
returning h.lane, h.key
