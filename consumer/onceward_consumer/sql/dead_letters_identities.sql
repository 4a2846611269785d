-- The identities that dead_letters_find.sql would return, for decisions about many.
select consumer_group, command_id
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
order by dead_at, consumer_group, command_id
limit %(limit)s
