-- Dead letters counted by what they have in common, the largest heap first.
select
    consumer_group, lane, type, reason, cause, count(*) as count, count(distinct key) as keys,
    min(dead_at) as oldest, max(dead_at) as newest,
    (array_agg(error order by dead_at desc))[1] as last_error
from onceward.dead_letters
{filter}
group by consumer_group, lane, type, reason, cause
order by count desc, consumer_group, lane, type, reason, cause
limit %(limit)s
