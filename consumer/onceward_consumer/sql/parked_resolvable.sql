-- Commands parked for what a deployment or a registration may have resolved since; a page of them.
select seq, command_id, topic, partition, "offset", timestamp_ms, record_key, payload, headers, lane, attempt
from onceward.parked
where consumer_group = %s and reason = %s and reason <> 'held' and seq > %s
order by seq
limit %s
for update skip locked
