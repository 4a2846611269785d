-- Workers that died a day ago. To the ledger a worker without a row is as dead as one whose lease is over; those that hold
-- keys are kept until these are free, so that an operator sees who had them.
delete from onceward.workers w
where w.lease_until < now() - interval '1 day'
    and not exists (select from onceward.holds h where h.incarnation = w.incarnation)
