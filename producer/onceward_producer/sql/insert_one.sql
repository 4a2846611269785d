insert into onceward.outbox
    (id, aggregatetype, aggregateid, type, payload, topic, version, attempt, tenant, run_id, traceparent, context)
values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
