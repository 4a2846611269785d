delete from onceward.parked where consumer_group = %s and command_id = any(%s::uuid[])
