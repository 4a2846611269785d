-- Waits for a tick transaction of the former leader that is under way; that one's next is refused.
insert into onceward.scheduler_epochs as known (app, partition, epoch, leader)
values (%(app)s, %(partition)s, 1, %(leader)s)
on conflict (app, partition) do update set epoch = known.epoch + 1, leader = excluded.leader, led_since = now()
returning epoch
