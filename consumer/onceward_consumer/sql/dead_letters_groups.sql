-- Dead letters counted by what they have in common, the largest heap first.
select
    consumer_group, lane, type, reason, count(*) as count, count(distinct key) as keys,
    min(dead_at) as oldest, max(dead_at) as newest,
    (array_agg(error order by dead_at desc))[1] as last_error
from onceward.dead_letters
where (%(group)s::text is null or consumer_group = %(group)s)
    and (%(command_id)s::uuid is null or command_id = %(command_id)s)
    and (%(lane)s::text is null or lane = %(lane)s)
    and (%(type)s::text is null or type = %(type)s)
    and (%(reason)s::text is null or reason = %(reason)s)
    and (%(key)s::text is null or key = %(key)s)
    and (%(run_id)s::uuid is null or run_id = %(run_id)s)
    and (%(since)s::timestamptz is null or dead_at >= %(since)s)
    and (%(state)s::text is null or state = %(state)s)
group by consumer_group, lane, type, reason
order by count desc, consumer_group, lane, type, reason
limit %(limit)s
