-- Which of these keys are held, where two lanes are asked for also a key that was asked for of the other one. Nothing but the
-- primary key is read, once, and no row is locked.
select h.lane, h.key
from onceward.holds h
where h.consumer_group = %(group)s and h.lane = any(%(lanes)s::text[]) and h.key = any(%(keys)s::text[])
