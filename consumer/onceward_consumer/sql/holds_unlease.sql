-- Leased and not run: the key goes on waiting to be drained.
update onceward.holds h set incarnation = null, updated_at = now()
from unnest(%s::text[], %s::text[]) as wanted (lane, key)
where h.consumer_group = %s and h.lane = wanted.lane and h.key = wanted.key and h.incarnation = %s
