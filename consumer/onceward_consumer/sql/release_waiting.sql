-- Whether a key waits to be drained.
select exists (select from onceward.holds where consumer_group = %s and state = 'draining')
