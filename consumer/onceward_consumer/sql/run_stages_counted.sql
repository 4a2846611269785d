update onceward.run_stages as stage set done = now.done, failed = now.failed, retrying = now.retrying
from unnest(%(run_ids)s::uuid[], %(stages)s::text[], %(done)s::int[], %(failed)s::int[], %(retrying)s::int[])
    as now (run_id, stage, done, failed, retrying)
where stage.run_id = now.run_id and stage.stage = now.stage
