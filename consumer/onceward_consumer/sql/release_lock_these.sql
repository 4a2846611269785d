-- Of these keys, those that are still to be drained and that nobody runs now.
select h.lane, h.key, h.drained
from unnest(%(lanes)s::text[], %(keys)s::text[]) as wanted (lane, key)
join onceward.holds h on h.lane = wanted.lane and h.key = wanted.key
where h.consumer_group = %(group)s and h.lane = any(%(lanes)s::text[]) and h.key = any(%(keys)s::text[])
    and h.state = 'draining' and (
    h.incarnation is null
    or h.incarnation = %(incarnation)s and not exists (
        select from unnest(%(own_lanes)s::text[], %(own_keys)s::text[]) as own (lane, key)
        where own.lane = h.lane and own.key = h.key)
    or not exists (select from onceward.workers w where w.incarnation = h.incarnation and w.lease_until > now()))
order by h.updated_at
for no key update of h skip locked
