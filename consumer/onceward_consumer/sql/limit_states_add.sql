-- Rows to lock for these limits, with what the app says of each.
insert into onceward.limit_states as s (consumer_group, scope, declared)
select %s, v.scope, v.declared from unnest(%s::text[], %s::text[]) as v (scope, declared)
order by v.scope
on conflict (consumer_group, scope) do update set declared = excluded.declared
where s.declared is distinct from excluded.declared
