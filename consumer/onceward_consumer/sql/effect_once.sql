-- Waits for another transaction that is about to apply the same effect.
insert into onceward.effects (consumer_group, key, command_id)
values (%s, %s, %s)
on conflict do nothing
