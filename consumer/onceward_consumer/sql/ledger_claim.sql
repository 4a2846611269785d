-- First sight of commands: a row each for those the group has not seen, in the state that success leaves them in.
insert into onceward.ledger (command_id, consumer_group)
select unnest(%s::text::uuid[]), %s
on conflict do nothing
returning command_id
