select concurrency, rate, breaker, paused from onceward.limits where consumer_group = %s and scope = %s
