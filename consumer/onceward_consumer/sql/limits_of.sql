-- What operators have set for a group.
select scope, concurrency, rate, breaker, paused from onceward.limits where consumer_group = %s
