-- A run with its stages, unless one of the same kind and business key exists: then no row comes back.
with started as (
    insert into onceward.runs (id, kind, business_key, params, follow_up, created_by)
    values (cast(%s as uuid), cast(%s as text), cast(%s as text), cast(%s as jsonb), cast(%s as jsonb), cast(%s as text))
    on conflict (kind, business_key) where business_key is not null do nothing
    returning id
), staged as (
    insert into onceward.run_stages (run_id, stage, position, expected)
    select started.id, given.stage, given.position, given.expected
    from started, unnest(cast(%s as text[]), cast(%s as int[])) with ordinality as given (stage, expected, position)
)
select id from started
