select app, schedule_id, scheduled_at, outcome, reason, command_ids, emitted_at
from onceward.ticks
where (%(app)s::text is null or app = %(app)s)
    and (%(schedule_id)s::text is null or schedule_id = %(schedule_id)s)
    and (%(outcome)s::text is null or outcome = %(outcome)s)
order by scheduled_at desc, app, schedule_id
limit %(limit)s
