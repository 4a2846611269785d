-- The parked rows of one topic and key in order. Rows without a key have no order: only those to be replayed.
select seq, reason, state, record_value, record_headers
from onceward.outbox_parked
where record_topic is not distinct from %s::text and record_key is not distinct from %s::bytea
    and state in ('parked', 'replaying') and (record_key is not null or state = 'replaying')
order by seq
limit %s
