-- Draining keys whose next follower this worker runs outside of the transaction.
update onceward.holds h set incarnation = %s, updated_at = now()
from unnest(%s::text[], %s::text[]) as wanted (lane, key)
where h.consumer_group = %s and h.lane = wanted.lane and h.key = wanted.key and h.state = 'draining'
