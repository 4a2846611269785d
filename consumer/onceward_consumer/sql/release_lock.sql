-- Keys whose head is resolved and whose followers nobody runs now; the longest waiting first.
select h.lane, h.key
from onceward.holds h
where h.consumer_group = %s and h.state = 'draining' and (
    h.incarnation is null
    or not exists (select from onceward.workers w where w.incarnation = h.incarnation and w.lease_until > now()))
order by h.updated_at
limit %s
for no key update skip locked
