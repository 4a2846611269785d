-- Removes holds behind which nothing is parked. Run after holds_remove_lock, as a statement of its own, so that it sees
-- what those who parked have committed. Where more is parked that shows beyond `drained`; what lies before it is mostly dead
-- index entries, and is only read where nothing does.
delete from onceward.holds h
using unnest(%(lanes)s::text[], %(keys)s::text[]) as done (lane, key)
where h.lane = done.lane and h.key = done.key
    and h.consumer_group = %(group)s and h.lane = any(%(lanes)s::text[]) and h.key = any(%(keys)s::text[])
    and not case
        when exists (
            select from onceward.parked p where p.consumer_group = h.consumer_group and p.lane = h.lane and p.key = h.key
                and p.reason = 'held' and p.seq > h.drained)
        then true
        else exists (
            select from onceward.parked p where p.consumer_group = h.consumer_group and p.lane = h.lane and p.key = h.key
                and p.reason = 'held' and p.seq <= h.drained)
    end
