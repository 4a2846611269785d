-- Takes back what this transaction claimed and then could not run.
delete from onceward.ledger where consumer_group = %s and command_id = any(%s::uuid[])
