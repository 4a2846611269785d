-- The runs in which items of these commands failed, locked in order.
select id from onceward.runs
where id in (
    select run_id from onceward.run_items
    where state = 'failed' and consumer_group = %(group)s and command_id = any(%(command_ids)s::uuid[]))
order by id
for no key update
