-- After limit_states_lock, as a statement of its own, so that it sees what the last to decide committed. The first row is
-- the asking worker's: how long its lease runs, and what time it is.
select null as scope, w.incarnation, 0 as permits, 0 as wanted,
    extract(epoch from w.lease_until - clock_timestamp())::double precision as left_seconds,
    extract(epoch from clock_timestamp())::double precision as now
from (values (%(incarnation)s::uuid)) as own (incarnation)
left join onceward.workers w on w.incarnation = own.incarnation
union all
select s.scope, s.incarnation, s.permits, s.wanted,
    coalesce(extract(epoch from w.lease_until - clock_timestamp()), -1)::double precision,
    0
from onceward.limit_shares s
left join onceward.workers w on w.incarnation = s.incarnation
where s.consumer_group = %(group)s and s.scope = any(%(scopes)s)
