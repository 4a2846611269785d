select at, consumer_group, scope, action, before, after, set_by, because
from onceward.limit_changes
where (%(group)s::text is null or consumer_group = %(group)s) and (%(scope)s::text is null or scope = %(scope)s)
order by id desc
limit %(limit)s
