-- Limits that are set, and limits that workers meet, with what they do under them.
with shares as (
    select s.consumer_group, s.scope, sum(s.permits)::int as permits, sum(s.wanted)::int as wanted
    from onceward.limit_shares s
    join onceward.workers w on w.incarnation = s.incarnation and w.lease_until > now()
    group by 1, 2
)
select coalesce(l.consumer_group, s.consumer_group) as consumer_group, coalesce(l.scope, s.scope) as scope,
    l.concurrency, l.rate, coalesce(l.breaker = 'off', false) as breaker_off, coalesce(l.paused, false) as paused,
    coalesce(h.permits, 0) as permits, coalesce(h.wanted, 0) as wanted,
    case when s.circuit is not null and coalesce(s.scope, '') like 'destination:%%'
        then coalesce(s.circuit ->> 'phase', 'closed') end as breaker,
    to_timestamp((s.circuit ->> 'until')::double precision) as open_until,
    s.circuit ->> 'reason' as reason, s.declared, l.set_by, l.because, l.updated_at
from onceward.limits l
full join onceward.limit_states s on s.consumer_group = l.consumer_group and s.scope = l.scope
left join shares h on h.consumer_group = coalesce(l.consumer_group, s.consumer_group)
    and h.scope = coalesce(l.scope, s.scope)
where (l.scope is not null or s.declared is distinct from 'none' or s.circuit is not null or h.wanted > 0)
    and (%(group)s::text is null or coalesce(l.consumer_group, s.consumer_group) = %(group)s)
order by 1, 2
