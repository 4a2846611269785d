delete from onceward.effects
where ctid = any (array(
    select ctid from onceward.effects
    where applied_at < now() - %(retention)s
    order by applied_at
    limit %(batch)s
    for update skip locked))
