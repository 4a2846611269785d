-- Commands that wait in PostgreSQL, numbered in the order given.
insert into onceward.parked (consumer_group, command_id, lane, key, reason, attempt, topic, partition, "offset",
    timestamp_ms, record_key, payload, headers)
select %(group)s, v.id, v.lane, v.key, v.reason, v.attempt, v.topic, v.partition, v."offset", v.timestamp_ms, v.record_key,
    v.payload, v.headers::json
from unnest(%(ids)s::uuid[], %(lanes)s::text[], %(keys)s::text[], %(reasons)s::text[], %(attempts)s::int[],
    %(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[], %(timestamps)s::bigint[], %(record_keys)s::bytea[],
    %(payloads)s::bytea[], %(headers)s::text[]) with ordinality
    as v (id, lane, key, reason, attempt, topic, partition, "offset", timestamp_ms, record_key, payload, headers, position)
order by v.position
on conflict (consumer_group, command_id) do nothing
