delete from onceward.dedupe
where ctid = any (array(select ctid from onceward.dedupe where expires_at < now() order by expires_at limit 5000))
