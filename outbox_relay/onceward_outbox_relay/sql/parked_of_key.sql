-- The parked rows of one topic and key in order. Rows without a key have no order: only those to be replayed.
select seq, reason, state, record_value, record_headers
from onceward.outbox_parked
where hashtextextended(record_topic, 0) is not distinct from hashtextextended(%(topic)s::text, 0)
    and record_topic is not distinct from %(topic)s::text and record_key is not distinct from %(key)s::bytea
    and state in ('parked', 'replaying') and (record_key is not null or state = 'replaying')
order by seq
limit %(limit)s
