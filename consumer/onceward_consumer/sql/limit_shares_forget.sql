-- Shares of workers whose lease has run out, under the locks of limit_states.
delete from onceward.limit_shares
where consumer_group = %s and (scope, incarnation) in (select * from unnest(%s::text[], %s::uuid[]))
