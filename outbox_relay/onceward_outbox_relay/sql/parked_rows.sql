-- The parked rows that a selection means.
select
    seq,
    id,
    record_topic as topic,
    convert_from(record_key, 'utf8') as key,
    reason,
    state,
    error,
    length(record_value) as bytes,
    parked_at,
    decided_by,
    decided_because
from onceward.outbox_parked
where (%(seqs)s::bigint[] is null or seq = any (%(seqs)s))
    and (%(topic)s::text is null or record_topic = %(topic)s)
    and (%(key)s::bytea is null or record_key = %(key)s)
    and (%(reason)s::text is null or reason = %(reason)s)
    and (%(state)s::text is null or state = %(state)s)
order by seq
limit %(limit)s
