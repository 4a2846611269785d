select id, kind, business_key, params, state, follow_up_id, created_by, created_at, progressed_at, completed_at
from onceward.runs
where (%(ids)s::uuid[] is null or id = any(%(ids)s))
    and (%(kind)s::text is null or kind = %(kind)s)
    and (%(states)s::text[] is null or state = any(%(states)s))
    and (%(idle_seconds)s::float8 is null or progressed_at < now() - make_interval(secs => %(idle_seconds)s))
order by created_at desc, id desc
limit %(limit)s
