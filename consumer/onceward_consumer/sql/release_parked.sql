-- The first followers of each key, in order.
select p.command_id, p.topic, p.partition, p."offset", p.timestamp_ms, p.record_key, p.payload, p.headers, p.lane, p.attempt
from unnest(%s::text[], %s::text[]) with ordinality as wanted (lane, key, position)
cross join lateral (
    select * from onceward.parked q
    where q.consumer_group = %s and q.lane = wanted.lane and q.key = wanted.key and q.reason = 'held'
    order by q.seq
    limit %s
) as p
order by wanted.position, p.seq
