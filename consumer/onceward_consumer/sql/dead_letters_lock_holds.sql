-- Whoever removes a hold locks it against those who park behind it, and then looks for parked commands again.
select consumer_group, lane, key from onceward.holds
where state = 'dead' and (consumer_group, head_id) in (select * from unnest(%(groups)s::text[], %(ids)s::uuid[]))
order by consumer_group, lane, key
for update
