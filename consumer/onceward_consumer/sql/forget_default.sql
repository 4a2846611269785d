-- Final rows outside the prepared weeks. A version 7 id must be old as well: an id from the future is not, by the age that
-- admission measures, and must be remembered until it is.
delete from onceward.ledger_default
where ctid = any (array(
    select ctid from onceward.ledger_default
    where (case when state in ('running', 'retrying', 'parked') then 'infinity'::timestamptz else updated_at end)
            < now() - %(retention)s
        and (uuid_extract_version(command_id) is distinct from 7
            or command_id < onceward.uuid_floor(now() - %(retention)s))
    limit %(batch)s
    for update skip locked))
