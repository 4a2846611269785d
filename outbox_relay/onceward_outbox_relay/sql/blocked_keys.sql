-- Which topics and keys have rows parked?
select distinct record_topic, record_key
from onceward.outbox_parked
where state in ('parked', 'replaying') and record_key is not null
