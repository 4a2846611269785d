-- Whether another worker of the group has lately let its lease run out; one that drained has no row any more.
select exists (
    select from onceward.workers
    where consumer_group = %s and incarnation <> %s and lease_until between now() - interval '10 minutes' and now())
