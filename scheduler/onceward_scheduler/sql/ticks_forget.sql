-- Those that failed stay: they are tried again.
delete from onceward.ticks
where ctid = any (array(
    select ctid from onceward.ticks
    where scheduled_at < now() - %(retention)s and outcome <> 'failed'
    order by scheduled_at
    limit %(batch)s
    for update skip locked))
