-- Tenants whose limits nobody has met for two days; their buckets are full again.
delete from onceward.limit_states s
where s.consumer_group = %s and s.scope like 'tenant:%%' and s.updated_at < now() - interval '2 days'
    and not exists (select from onceward.limit_shares h where h.consumer_group = s.consumer_group and h.scope = s.scope)
    and coalesce(s.circuit ->> 'phase', 'closed') = 'closed'
