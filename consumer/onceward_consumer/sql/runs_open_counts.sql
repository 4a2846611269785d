select kind, state, count(*) from onceward.runs where state in ('queued', 'running') group by kind, state
