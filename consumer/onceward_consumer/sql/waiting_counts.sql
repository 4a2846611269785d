-- What of a group waits in PostgreSQL, by lane.
select 'held' as what, lane, state as detail, count(*)::int from onceward.holds where consumer_group = %(group)s group by 2, 3
union all
select 'parked', lane, reason, count(*)::int from onceward.parked where consumer_group = %(group)s group by 2, 3
union all
select 'dead', lane, '', count(*)::int from onceward.dead_letters
where consumer_group = %(group)s and state = 'open' group by 2, 3
