select attempt, outcome, reason, error, worker, at
from onceward.attempts
where consumer_group = %(group)s and command_id = %(command_id)s
order by attempt
