select acknowledged::text from onceward.relay_slots where slot = %s and system = %s
