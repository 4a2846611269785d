-- As last counted; at most a moment old while a keeper runs.
select run_id, stage, expected, done, failed, retrying
from onceward.run_stages where run_id = any(%(run_ids)s::uuid[]) order by run_id, position
