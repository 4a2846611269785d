-- The first followers of each key, in order; fewer where their payloads are large. Those up to `drained` are gone.
select command_id, topic, partition, "offset", timestamp_ms, record_key, payload, headers, lane, attempt, seq
from (
    select p.*, wanted.position,
        row_number() over in_turn as number, sum(coalesce(octet_length(p.payload), 0)) over in_turn as bytes
    from unnest(%(lanes)s::text[], %(keys)s::text[], %(drained)s::bigint[]) with ordinality
        as wanted (lane, key, drained, position)
    cross join lateral (
        select * from onceward.parked q
        where q.consumer_group = %(group)s and q.lane = wanted.lane and q.key = wanted.key and q.reason = 'held'
            and q.seq > wanted.drained
        order by q.seq
        limit %(per_key)s
    ) as p
    window in_turn as (order by wanted.position, p.seq)
) as found
where number = 1 or bytes <= %(most_bytes)s
order by position, seq
