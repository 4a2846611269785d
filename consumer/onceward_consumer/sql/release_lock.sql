-- Keys whose head is resolved and whose followers nobody runs now; the longest waiting first. What is leased to this worker,
-- and not in its hands, is a lease of which it was not told.
select h.lane, h.key, h.drained
from onceward.holds h
where h.consumer_group = %(group)s and h.state = 'draining' and (
    h.incarnation is null
    or h.incarnation = %(incarnation)s and not exists (
        select from unnest(%(own_lanes)s::text[], %(own_keys)s::text[]) as own (lane, key)
        where own.lane = h.lane and own.key = h.key)
    or not exists (select from onceward.workers w where w.incarnation = h.incarnation and w.lease_until > now()))
order by h.updated_at
limit %(limit)s
for no key update skip locked
