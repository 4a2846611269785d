-- Drops duplicates, sends what is not due to onceward.delayed and the rest to the outbox; returns for each draft, in
-- order, the id that counts and whether it was there before. The placeholder is for drafts_many.sql or draft_one.sql.
-- A publisher with the same dedupe key waits on its row for the other one's transaction: whichever commits first counts.
-- The no-op update exists so that the row is returned although this statement's snapshot is older than it.
with given as (
    select * from {drafts} as draft (
        id, aggregatetype, aggregateid, type, payload, topic, version, attempt, tenant, run_id, traceparent, context,
        dedupe_key, window_seconds, not_before, position
    )
),
claimed as (
    insert into onceward.dedupe as held (type, dedupe_key, command_id, expires_at)
    select distinct on (type, dedupe_key)
        type, dedupe_key, id, statement_timestamp() + make_interval(secs => window_seconds)
    from given
    where dedupe_key is not null
    order by type, dedupe_key, position
    on conflict (type, dedupe_key) do update set
        command_id = case when held.expires_at <= statement_timestamp()
            then excluded.command_id else held.command_id end,
        expires_at = case when held.expires_at <= statement_timestamp()
            then excluded.expires_at else held.expires_at end
    returning type, dedupe_key, command_id
),
judged as (
    select
        given.*,
        coalesce(claimed.command_id, given.id) as kept,
        coalesce(given.not_before > statement_timestamp(), false) as early
    from given left join claimed using (type, dedupe_key)
),
queued as (
    insert into onceward.outbox
        (id, aggregatetype, aggregateid, type, payload, topic, version, attempt, tenant, run_id, traceparent, context)
    select id, aggregatetype, aggregateid, type, payload, topic, version, attempt, tenant, run_id, traceparent, context
    from judged
    where kept = id and not early
    order by position
),
later as (
    insert into onceward.delayed
        (not_before, id, aggregatetype, aggregateid, type, payload, topic, version, attempt, tenant, run_id,
         traceparent, context)
    select not_before, id, aggregatetype, aggregateid, type, payload, topic, version, attempt, tenant, run_id,
         traceparent, context
    from judged
    where kept = id and early
    order by position
)
select kept, kept <> id from judged order by position
