-- Keys whose head is resolved and whose followers nobody runs now; the longest waiting first.
select h.lane, h.key
from onceward.holds h
where h.consumer_group = %s and h.state = 'draining' and h.incarnation is null
order by h.updated_at
limit %s
for no key update skip locked
