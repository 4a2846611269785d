-- Buckets and breakers as they are now.
update onceward.limit_states s
set tokens = v.tokens, filled_at = v.filled_at, circuit = v.circuit, updated_at = clock_timestamp()
from unnest(%(scopes)s::text[], %(tokens)s::double precision[], %(filled)s::double precision[], %(circuits)s::jsonb[])
    as v (scope, tokens, filled_at, circuit)
where s.consumer_group = %(group)s and s.scope = v.scope
