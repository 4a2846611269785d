-- Keys that these dead letters hold (strict order), locked against those who park behind them. holds_remove.sql and
-- holds_drain.sql come next, and look for parked commands again under this lock.
select consumer_group, lane, key from onceward.holds
where state = 'dead' and (consumer_group, head_id) in (select * from unnest(%(groups)s::text[], %(ids)s::uuid[]))
order by consumer_group, lane, key
for update
