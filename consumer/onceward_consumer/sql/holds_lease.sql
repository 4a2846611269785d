-- Draining keys whose next follower this worker runs outside of the transaction.
update onceward.holds h set incarnation = %(incarnation)s, updated_at = now()
from unnest(%(lanes)s::text[], %(keys)s::text[]) as wanted (lane, key)
where h.lane = wanted.lane and h.key = wanted.key
    and h.consumer_group = %(group)s and h.lane = any(%(lanes)s::text[]) and h.key = any(%(keys)s::text[]) and h.state = 'draining'
