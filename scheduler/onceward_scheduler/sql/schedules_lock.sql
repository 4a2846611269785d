-- Of the schedules about to be emitted, those that are still as they were when that was decided.
select schedule.id
from onceward.schedules as schedule
join unnest(%(ids)s::text[], %(next_at)s::timestamptz[]) as decided (id, next_at)
    on schedule.id = decided.id and schedule.next_at = decided.next_at
where schedule.app = %(app)s and schedule.paused_because is null and schedule.undeclared_at is null
order by schedule.id
for no key update of schedule skip locked
