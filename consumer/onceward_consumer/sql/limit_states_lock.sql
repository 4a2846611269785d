-- One worker at a time decides on a limit.
select scope, tokens, filled_at, circuit
from onceward.limit_states
where consumer_group = %s and scope = any(%s)
order by scope
for no key update
