-- Dead letters by what is known of them, oldest first. Payloads stay behind.
select
    consumer_group, command_id, lane, key, type, version, tenant, run_id, item, reason, cause, error, attempts, first_failed_at,
    dead_at, topic, partition, "offset", timestamp_ms, octet_length(payload) as payload_bytes, headers, worker,
    code_version, state, decided_by, decided_because, updated_at
from onceward.dead_letters
{filter}
order by dead_at, consumer_group, command_id
limit %(limit)s
