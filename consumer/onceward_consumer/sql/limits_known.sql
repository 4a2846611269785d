-- What workers of a group have named: lanes, types and destinations of handlers, and tenants that met a limit.
select scope from onceward.limit_states where consumer_group = %s
