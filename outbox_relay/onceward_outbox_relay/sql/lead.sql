-- Held by the session, so that it is free at once when the leader dies.
select pg_try_advisory_lock(hashtext('onceward.relay'), hashtext(%s))
