-- For those who run the commands of held keys: one of them at a time.
select h.lane, h.key, h.state, h.head_id
from unnest(%s::text[], %s::text[]) as wanted (lane, key)
join onceward.holds h on h.consumer_group = %s and h.lane = wanted.lane and h.key = wanted.key
order by h.lane, h.key
for no key update of h
