-- Keys whose head failed: held until it is resolved.
insert into onceward.holds (consumer_group, lane, key, state, head_id, due_at)
select %(group)s, v.lane, v.key, v.state, v.head_id, v.due_at
from unnest(%(lanes)s::text[], %(keys)s::text[], %(states)s::text[], %(heads)s::uuid[], %(due)s::timestamptz[])
    as v (lane, key, state, head_id, due_at)
order by v.lane, v.key
on conflict (consumer_group, lane, key) do update set
    state = excluded.state, head_id = excluded.head_id, due_at = excluded.due_at, incarnation = null, updated_at = now()
