-- Parked commands that fit and are no followers are given up, and that is recorded.
with meant as (
    select p.consumer_group, p.command_id, p.lane, p.key, p.reason
    from onceward.parked p
    cross join lateral (
        select max(e ->> 1) filter (where e ->> 0 = 'type') as type,
            max(e ->> 1) filter (where e ->> 0 = 'tenant') as tenant
        from json_array_elements(p.headers) as e
    ) as h
    where p.reason not in ('held', 'discard')
        and (%(group)s::text is null or p.consumer_group = %(group)s)
        and (%(lane)s::text is null or p.lane = %(lane)s)
        and (%(reason)s::text is null or p.reason = %(reason)s)
        and (%(key)s::text is null or p.key = %(key)s)
        and (%(type)s::text is null or h.type = %(type)s)
        and (%(tenant)s::text is null or h.tenant = %(tenant)s)
        and (%(ids)s::uuid[] is null or p.command_id = any(%(ids)s))
    order by p.seq
    limit %(limit)s
    for update of p
), changed as (
    update onceward.parked p set reason = 'discard'
    from meant m
    where p.consumer_group = m.consumer_group and p.command_id = m.command_id
)
insert into onceward.parked_decisions (consumer_group, command_id, lane, key, reason, decided_by, because)
select consumer_group, command_id, lane, key, reason, %(by)s, %(because)s from meant
returning command_id
