-- First sight of external commands: a lease row each for those the group has not seen.
insert into onceward.ledger (command_id, consumer_group, state, incarnation)
select unnest(%s::text::uuid[]), %s, 'running', %s
on conflict do nothing
returning command_id
