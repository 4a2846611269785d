-- Before holds are removed: nobody can be parking behind them any more once this returns.
select from unnest(%(lanes)s::text[], %(keys)s::text[]) as done (lane, key)
join onceward.holds h on h.lane = done.lane and h.key = done.key
where h.consumer_group = %(group)s and h.lane = any(%(lanes)s::text[]) and h.key = any(%(keys)s::text[])
order by h.lane, h.key
for update of h
