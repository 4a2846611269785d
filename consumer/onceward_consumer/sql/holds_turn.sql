-- Draining keys that have more followers go to the end of the queue; up to `drained` they have none that is parked.
update onceward.holds h set incarnation = null, updated_at = now(), drained = greatest(h.drained, done.seq)
from unnest(%(lanes)s::text[], %(keys)s::text[], %(seqs)s::bigint[]) as done (lane, key, seq)
where h.lane = done.lane and h.key = done.key
    and h.consumer_group = %(group)s and h.lane = any(%(lanes)s::text[]) and h.key = any(%(keys)s::text[])
