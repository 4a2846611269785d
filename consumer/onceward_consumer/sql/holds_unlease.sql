-- Leased and not run: the key goes on waiting to be drained.
update onceward.holds h set incarnation = null, updated_at = now()
from unnest(%(lanes)s::text[], %(keys)s::text[]) as wanted (lane, key)
where h.lane = wanted.lane and h.key = wanted.key
    and h.consumer_group = %(group)s and h.lane = any(%(lanes)s::text[]) and h.key = any(%(keys)s::text[])
    and h.incarnation = %(incarnation)s
