-- The commands whose items failed, each once; of items counted by a handler of a package, that package's command.
select distinct consumer_group, command_id
from onceward.run_items
where run_id = %(run_id)s and state = 'failed' and (%(stage)s::text is null or stage = %(stage)s)
    and consumer_group is not null and command_id is not null
order by command_id, consumer_group
