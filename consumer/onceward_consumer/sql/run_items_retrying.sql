-- Failed items whose commands are replayed wait again; their runs are open again.
with again as (
    update onceward.run_items set state = 'retrying', at = now()
    where state = 'failed' and consumer_group = %(group)s and command_id = any(%(command_ids)s::uuid[])
    returning run_id
), opened as (
    update onceward.runs set
        state = 'running', completed_at = null, progressed_at = clock_timestamp(), check_after = clock_timestamp()
    where id in (select run_id from again)
)
select count(*) from again
