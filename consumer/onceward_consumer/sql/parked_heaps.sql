select consumer_group, lane, reason, count(*)::int as commands, min(parked_at) as oldest
from onceward.parked
where (%(group)s::text is null or consumer_group = %(group)s)
group by 1, 2, 3
order by 4 desc, 1, 2, 3
