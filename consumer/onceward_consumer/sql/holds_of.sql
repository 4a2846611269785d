-- Which of these keys are held: nothing but the primary key is read.
select h.lane, h.key
from unnest(%s::text[], %s::text[]) as wanted (lane, key)
join onceward.holds h on h.consumer_group = %s and h.lane = wanted.lane and h.key = wanted.key
