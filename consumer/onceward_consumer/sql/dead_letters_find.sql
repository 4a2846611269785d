-- Dead letters by what is known of them, oldest first; a null parameter leaves its column open. Payloads stay behind.
select
    consumer_group, command_id, lane, key, type, version, tenant, run_id, item, reason, error, attempts, first_failed_at,
    dead_at, topic, partition, "offset", timestamp_ms, octet_length(payload) as payload_bytes, headers, worker,
    code_version, state, decided_by, decided_because, updated_at
from onceward.dead_letters
where (%(group)s::text is null or consumer_group = %(group)s)
    and (%(command_id)s::uuid is null or command_id = %(command_id)s)
    and (%(lane)s::text is null or lane = %(lane)s)
    and (%(type)s::text is null or type = %(type)s)
    and (%(reason)s::text is null or reason = %(reason)s)
    and (%(key)s::text is null or key = %(key)s)
    and (%(run_id)s::uuid is null or run_id = %(run_id)s)
    and (%(since)s::timestamptz is null or dead_at >= %(since)s)
    and (%(state)s::text is null or state = %(state)s)
order by dead_at, consumer_group, command_id
limit %(limit)s
