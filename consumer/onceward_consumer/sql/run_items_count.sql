-- Per stage of the given runs: what is expected, what was counted last, and what there is now.
select stage.run_id, stage.stage, stage.expected,
    stage.done as old_done, stage.failed as old_failed, stage.retrying as old_retrying,
    coalesce(now.done, 0)::int as done, coalesce(now.failed, 0)::int as failed, coalesce(now.retrying, 0)::int as retrying
from onceward.run_stages as stage
left join (
    select run_id, stage,
        count(*) filter (where state = 'done') as done,
        count(*) filter (where state = 'failed') as failed,
        count(*) filter (where state = 'retrying') as retrying
    from onceward.run_items
    where run_id = any(%(run_ids)s::uuid[])
    group by run_id, stage
) as now using (run_id, stage)
where stage.run_id = any(%(run_ids)s::uuid[])
order by stage.run_id, stage.position
