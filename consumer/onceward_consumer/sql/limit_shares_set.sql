-- What this worker has now; nothing is not kept.
with own as (
    select * from unnest(%(scopes)s::text[], %(permits)s::int[], %(wanted)s::int[]) as v (scope, permits, wanted)
), gone as (
    delete from onceward.limit_shares s using own
    where s.consumer_group = %(group)s and s.scope = own.scope and s.incarnation = %(incarnation)s
        and own.permits = 0 and own.wanted = 0
)
insert into onceward.limit_shares (consumer_group, scope, incarnation, permits, wanted)
select %(group)s, scope, %(incarnation)s, permits, wanted from own where permits > 0 or wanted > 0
on conflict (consumer_group, scope, incarnation) do update set permits = excluded.permits, wanted = excluded.wanted
