-- Which keys may go on: the first parked row is to be replayed, or only followed a row that is decided now.
select record_topic, record_key
from (
    select distinct on (record_topic, record_key, case when record_key is null then seq end)
        record_topic, record_key, state, reason
    from onceward.outbox_parked
    where state in ('parked', 'replaying')
    order by record_topic, record_key, case when record_key is null then seq end, seq
) as head
where state = 'replaying' or reason = 'follows'
group by record_topic, record_key
limit 1000
