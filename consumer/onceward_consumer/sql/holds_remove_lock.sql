-- Before holds are removed: nobody can be parking behind them any more once this returns.
select from onceward.holds h
where h.consumer_group = %s and (h.lane, h.key) in (select * from unnest(%s::text[], %s::text[]))
order by h.lane, h.key
for update
