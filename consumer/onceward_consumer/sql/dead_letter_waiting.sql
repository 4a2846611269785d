-- How many commands of the key wait behind this dead letter; null where it holds nothing.
select (
    select count(*) from onceward.parked
    where parked.consumer_group = holds.consumer_group and parked.lane = holds.lane and parked.key = holds.key
)
from onceward.holds
where consumer_group = %(group)s and head_id = %(command_id)s and state = 'dead'
