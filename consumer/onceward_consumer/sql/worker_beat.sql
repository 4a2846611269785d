-- Renews a worker's lease, and tells the database's time.
insert into onceward.workers (incarnation, consumer_group, host, pid, code_version, lease_until, draining)
values (%s, %s, %s, %s, %s, clock_timestamp() + %s, %s)
on conflict (incarnation) do update set lease_until = excluded.lease_until, draining = excluded.draining
returning clock_timestamp()
