-- Breakers as the others have left them, without a lock.
select scope, circuit from onceward.limit_states
where consumer_group = %s and scope = any(%s) and circuit is not null
