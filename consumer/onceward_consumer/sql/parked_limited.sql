-- For which of these reasons something is parked.
select coalesce(array_agg(r.reason), '{}')
from unnest(%s::text[]) as r (reason)
where exists (select from onceward.parked p where p.consumer_group = %s and p.reason = r.reason)
