-- Removes holds behind which nothing is parked. Run after holds_remove_lock, as a statement of its own, so that it sees
-- what those who parked have committed.
delete from onceward.holds h
using unnest(%s::text[], %s::text[]) as done (lane, key)
where h.consumer_group = %s and h.lane = done.lane and h.key = done.key
    and not exists (
        select from onceward.parked p where p.consumer_group = h.consumer_group and p.lane = h.lane and p.key = h.key
            and p.reason = 'held')
