-- Replayed dead letters that ended well.
update onceward.dead_letters set state = %s, updated_at = now()
where consumer_group = %s and command_id = any(%s::uuid[]) and state = 'replaying'
