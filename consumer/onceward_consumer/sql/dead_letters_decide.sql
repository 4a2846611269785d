update onceward.dead_letters set
    state = %(state)s, decided_by = %(by)s, decided_because = %(because)s, updated_at = now()
where (consumer_group, command_id) in (select * from unnest(%(groups)s::text[], %(ids)s::uuid[]))
