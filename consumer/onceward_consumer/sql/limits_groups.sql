-- Groups that have workers, or had limits set.
select consumer_group from onceward.workers
union
select consumer_group from onceward.limits
order by 1
