-- For those who run the commands of held keys: one of them at a time. The conditions on lane and key let the index be read once.
select h.lane, h.key, h.state, h.head_id
from unnest(%(lanes)s::text[], %(keys)s::text[]) as wanted (lane, key)
join onceward.holds h on h.lane = wanted.lane and h.key = wanted.key
where h.consumer_group = %(group)s and h.lane = any(%(lanes)s::text[]) and h.key = any(%(keys)s::text[])
order by h.lane, h.key
for no key update of h
