-- Rows to lock for these limits.
insert into onceward.limit_states (consumer_group, scope)
select %s, v.scope from unnest(%s::text[]) as v (scope)
order by v.scope
on conflict do nothing
