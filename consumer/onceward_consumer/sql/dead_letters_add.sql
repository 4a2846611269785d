-- One that was replayed and failed again is open again; who replayed it, and why, stays.
insert into onceward.dead_letters as known (consumer_group, command_id, lane, key, type, version, tenant, run_id, item,
    reason, cause, error, attempts, first_failed_at, topic, partition, "offset", timestamp_ms, record_key, payload, headers,
    worker, code_version)
select %(group)s, v.id, v.lane, v.key, v.type, v.version, v.tenant, v.run_id, v.item, v.reason, v.cause, v.error,
    v.attempts, coalesce(v.first_failed_at, now()), v.topic, v.partition, v."offset", v.timestamp_ms, v.record_key,
    v.payload, v.headers::json, %(worker)s, %(code_version)s
from unnest(%(ids)s::uuid[], %(lanes)s::text[], %(keys)s::text[], %(types)s::text[], %(versions)s::int[],
    %(tenants)s::text[], %(run_ids)s::uuid[], %(items)s::text[], %(reasons)s::text[], %(causes)s::text[],
    %(errors)s::text[], %(attempts)s::int[], %(first_failed)s::timestamptz[], %(topics)s::text[], %(partitions)s::int[], %(offsets)s::bigint[],
    %(timestamps)s::bigint[], %(record_keys)s::bytea[], %(payloads)s::bytea[], %(headers)s::text[])
    as v (id, lane, key, type, version, tenant, run_id, item, reason, cause, error, attempts, first_failed_at, topic,
    partition, "offset", timestamp_ms, record_key, payload, headers)
on conflict (consumer_group, command_id) do update set
    state = 'open', reason = excluded.reason, cause = excluded.cause, error = excluded.error, attempts = excluded.attempts,
    first_failed_at = excluded.first_failed_at, dead_at = now(), worker = excluded.worker,
    code_version = excluded.code_version, updated_at = now()
