-- An operator's decision on the parked rows that a selection means.
update onceward.outbox_parked
set state = %(new_state)s, decided_by = %(actor)s, decided_because = %(because)s, updated_at = now()
where state = 'parked'
    and (%(seqs)s::bigint[] is null or seq = any (%(seqs)s))
    and (%(topic)s::text is null or record_topic = %(topic)s)
    and (%(key)s::bytea is null or record_key = %(key)s)
    and (%(reason)s::text is null or reason = %(reason)s)
returning seq
