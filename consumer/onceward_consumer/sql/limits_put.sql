insert into onceward.limits (consumer_group, scope, concurrency, rate, breaker, paused, set_by, because)
values (%(group)s, %(scope)s, %(concurrency)s, %(rate)s, %(breaker)s, %(paused)s, %(by)s, %(because)s)
on conflict (consumer_group, scope) do update set
    concurrency = excluded.concurrency, rate = excluded.rate, breaker = excluded.breaker, paused = excluded.paused,
    set_by = excluded.set_by, because = excluded.because, updated_at = now()
