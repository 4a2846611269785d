-- Housekeeping (design D3): ledger weeks are made ahead and dropped when nothing in them is needed any more. Both are
-- changes of tables, so the functions run with the rights of the tables' owner; workers are granted to call them.

-- When a row may be forgotten is counted from its last change, not from its id: a command published with not_before is
-- claimed long after its id was made. BRIN costs an insert next to nothing and keeps updates within their page.
create index ledger_by_change on onceward.ledger
    using brin ((case when state in ('running', 'retrying', 'parked') then 'infinity'::timestamptz else updated_at end));
create index attempts_by_time on onceward.attempts (at);

alter function onceward.prepare_ledger(interval) security definer set search_path = '';
revoke execute on function onceward.prepare_ledger(interval) from public;

-- Drops one ledger week, the oldest in which all ids and all changes are older than `retention` and no command is on its
-- way; returns its name, or null when there is none. Call it until then, each time in a transaction of its own.
-- DROP locks out every worker while it waits and runs. DETACH CONCURRENTLY would not, but is refused where there is a
-- default partition. So: look first without a lock; lock with the caller's short lock_timeout, which bounds how long
-- workers queue behind the wait; look again, which the index makes quick; drop.
create function onceward.drop_ledger_week(retention interval) returns text
language plpgsql security definer set search_path = '' set enable_seqscan = off as $$
declare
    week record;
    keep timestamptz := now() - retention;
    needed boolean;
begin
    for week in
        select part.oid, part.relname as name
        from pg_inherits link
        join pg_class part on part.oid = link.inhrelid
        cross join lateral regexp_match(
            pg_get_expr(part.relpartbound, part.oid), $re$TO \('([0-9a-f-]{36})'\)$re$) as bound
        where link.inhparent = 'onceward.ledger'::regclass and bound[1]::uuid <= onceward.uuid_floor(keep)
        order by bound[1]::uuid
    loop
        -- Pages that the index does not sum up yet would be read one by one under the lock.
        perform brin_summarize_new_values(i.indexrelid)
        from pg_index i
        join pg_class c on c.oid = i.indexrelid
        join pg_am m on m.oid = c.relam
        where i.indrelid = week.oid and m.amname = 'brin';
        for look in 1..2 loop
            execute format(
                'select exists (select from onceward.%I where (case when state in (''running'', ''retrying'', ''parked'')'
                ' then ''infinity''::timestamptz else updated_at end) >= $1)', week.name)
            into needed using keep;
            if look = 1 then
                exit when needed;
                lock table onceward.ledger in access exclusive mode;
            elsif needed then
                return null;  -- the lock is held to the end of the transaction: no further week
            else
                execute format('drop table onceward.%I', week.name);
                return week.name;
            end if;
        end loop;
    end loop;
    return null;
end $$;
revoke execute on function onceward.drop_ledger_week(interval) from public;
