-- The identities that dead_letters_find.sql would return, for decisions about many.
select consumer_group, command_id
from onceward.dead_letters
{filter}
order by dead_at, consumer_group, command_id
limit %(limit)s
