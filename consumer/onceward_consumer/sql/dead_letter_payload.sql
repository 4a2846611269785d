select payload from onceward.dead_letters where consumer_group = %(group)s and command_id = %(command_id)s
