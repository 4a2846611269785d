-- A run with its stages, unless one of the same kind and business key exists: then no row comes back.
with started as (
    insert into onceward.runs (id, kind, business_key, params, follow_up, created_by)
    values (%(id)s, %(kind)s, %(business_key)s, %(params)s::jsonb, %(follow_up)s::jsonb, %(created_by)s)
    on conflict (kind, business_key) where business_key is not null do nothing
    returning id
), staged as (
    insert into onceward.run_stages (run_id, stage, position, expected)
    select started.id, given.stage, given.position, given.expected
    from started, unnest(%(stages)s::text[], %(expected)s::int[]) with ordinality as given (stage, expected, position)
)
select id from started
