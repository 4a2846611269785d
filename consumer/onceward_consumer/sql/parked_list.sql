-- Parked commands that fit, in order of arrival.
select p.command_id, p.consumer_group, p.lane, h.type, h.tenant, p.key, p.reason, p.attempt, p.parked_at
from onceward.parked p
cross join lateral (
    select max(e ->> 1) filter (where e ->> 0 = 'type') as type, max(e ->> 1) filter (where e ->> 0 = 'tenant') as tenant
    from json_array_elements(p.headers) as e
) as h
where (%(group)s::text is null or p.consumer_group = %(group)s)
    and (%(lane)s::text is null or p.lane = %(lane)s)
    and (%(reason)s::text is null or p.reason = %(reason)s)
    and (%(key)s::text is null or p.key = %(key)s)
    and (%(type)s::text is null or h.type = %(type)s)
    and (%(tenant)s::text is null or h.tenant = %(tenant)s)
    and (%(ids)s::uuid[] is null or p.command_id = any(%(ids)s))
order by p.seq
limit %(limit)s
