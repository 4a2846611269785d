-- Of commands that are final; those of dead letters that wait for a decision stay to be looked at.
delete from onceward.attempts
where ctid = any (array(
    select a.ctid from onceward.attempts a
    where a.at < now() - %(retention)s
        and not exists (
            select from onceward.ledger l
            where l.command_id = a.command_id and l.consumer_group = a.consumer_group
                and l.state in ('running', 'retrying', 'parked'))
        and not exists (
            select from onceward.dead_letters d
            where d.command_id = a.command_id and d.consumer_group = a.consumer_group
                and d.state in ('open', 'replaying'))
    order by a.at
    limit %(batch)s
    for update of a skip locked))
