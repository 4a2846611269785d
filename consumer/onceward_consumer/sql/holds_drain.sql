-- Holds that are left after holds_remove have followers to be run; from the first on where none lies beyond `drained`.
update onceward.holds h set state = 'draining', incarnation = null, due_at = null, updated_at = now(),
    drained = case
        when exists (
            select from onceward.parked p where p.consumer_group = h.consumer_group and p.lane = h.lane and p.key = h.key
                and p.reason = 'held' and p.seq > h.drained)
        then h.drained
        else 0
    end
from unnest(%(lanes)s::text[], %(keys)s::text[]) as done (lane, key)
where h.lane = done.lane and h.key = done.key
    and h.consumer_group = %(group)s and h.lane = any(%(lanes)s::text[]) and h.key = any(%(keys)s::text[])
returning h.lane, h.key
