-- Takes what rows.arrays() returns: one array for each column.
insert into onceward.outbox
    (id, aggregatetype, aggregateid, type, payload, topic, version, attempt, tenant, run_id, traceparent, context)
select * from unnest(
    cast(%s as uuid[]), cast(%s as text[]), cast(%s as text[]), cast(%s as text[]), cast(%s as bytea[]),
    cast(%s as text[]), cast(%s as int[]), cast(%s as int[]), cast(%s as text[]), cast(%s as uuid[]),
    cast(%s as text[]), cast(%s as text[])
)
