select stage, item, reason, error, consumer_group, command_id, at
from onceward.run_items
where run_id = %(run_id)s and state = 'failed' and (%(stage)s::text is null or stage = %(stage)s)
order by stage, item
limit %(limit)s
