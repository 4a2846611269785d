-- Followers that wait are run in sequence; a key without any is free. Runs after dead_letters_lock_holds.sql.
with held as (
    select
        consumer_group, lane, key,
        exists (
            select from onceward.parked
            where parked.consumer_group = holds.consumer_group and parked.lane = holds.lane and parked.key = holds.key
        ) as followed
    from onceward.holds
    where state = 'dead' and (consumer_group, head_id) in (select * from unnest(%(groups)s::text[], %(ids)s::uuid[]))
),
draining as (
    update onceward.holds set state = 'draining', incarnation = null, due_at = null, updated_at = now()
    from held
    where held.followed and (holds.consumer_group, holds.lane, holds.key) = (held.consumer_group, held.lane, held.key)
)
delete from onceward.holds using held
where not held.followed and (holds.consumer_group, holds.lane, holds.key) = (held.consumer_group, held.lane, held.key)
