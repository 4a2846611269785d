-- Keys that a dead letter holds (strict order) wait for its replay instead of for an operator.
update onceward.holds set state = 'retrying', due_at = null, updated_at = now()
where state = 'dead' and (consumer_group, head_id) in (select * from unnest(%(groups)s::text[], %(ids)s::uuid[]))
