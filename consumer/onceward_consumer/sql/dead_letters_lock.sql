-- Locked in one order, so that two operators wait for each other and do not deadlock. Replays of one key keep their order,
-- for ids are in order of publishing.
select consumer_group, command_id, lane, key, type, attempts, record_key, payload, headers, state, decided_by
from onceward.dead_letters
where (consumer_group, command_id) in (select * from unnest(%(groups)s::text[], %(ids)s::uuid[]))
order by command_id, consumer_group
for update
