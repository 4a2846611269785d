-- Forgets a command that is not due yet, and its dedupe key, so that the same key may be published again.
with gone as (
    delete from onceward.delayed where id = cast(%s as uuid) returning id, type, context
),
freed as (
    delete from onceward.dedupe using gone
    where dedupe.type = gone.type
        and dedupe.dedupe_key = cast(gone.context as json) ->> 'dedupe_key'
        and dedupe.command_id = gone.id
)
select count(*) from gone
