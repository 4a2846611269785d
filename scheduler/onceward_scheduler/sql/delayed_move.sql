-- Due commands go to the outbox, earliest first; among equals in the order of publishing.
-- The placeholder says what becomes of a row that somebody has locked: nothing (it is waited for), or `skip locked`.
with due as (
    delete from onceward.delayed
    where seq in (
        select seq from onceward.delayed
        where not_before <= clock_timestamp()
        order by not_before, seq
        limit %(limit)s
        for update {busy}
    )
    returning *
), moved as (
    insert into onceward.outbox
        (id, aggregatetype, aggregateid, type, payload, topic, version, attempt, tenant, run_id, traceparent, context)
    select id, aggregatetype, aggregateid, type, payload, topic, version, attempt, tenant, run_id, traceparent, context
    from due
    order by not_before, seq
    returning 1
)
select count(*) from moved
