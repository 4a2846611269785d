-- What became of commands that were sent round again: how many are back where they were, and how many have not ended yet.
select count(*) filter (where p.reason = %(reason)s), count(*) filter (where l.state in ('running', 'retrying', 'parked'))
from onceward.ledger l
left join onceward.parked p on p.consumer_group = l.consumer_group and p.command_id = l.command_id
where l.consumer_group = %(group)s and l.command_id = any(%(ids)s)
