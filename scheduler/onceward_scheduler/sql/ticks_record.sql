-- Returns the ticks that this transaction has decided. One that was emitted or skipped before is left alone.
insert into onceward.ticks as known (app, schedule_id, scheduled_at, outcome, reason, command_ids, epoch)
select %(app)s, tick.schedule_id, tick.scheduled_at, tick.outcome, tick.reason,
    coalesce(string_to_array(tick.command_ids, ',')::uuid[], '{}'), tick.epoch
from unnest(
    %(schedule_ids)s::text[], %(scheduled_at)s::timestamptz[], %(outcomes)s::text[], %(reasons)s::text[],
    %(command_ids)s::text[], %(epochs)s::bigint[]
) as tick (schedule_id, scheduled_at, outcome, reason, command_ids, epoch)
on conflict (app, schedule_id, scheduled_at) do update set
    outcome = excluded.outcome, reason = excluded.reason, command_ids = excluded.command_ids,
    epoch = excluded.epoch, emitted_at = clock_timestamp()
where known.outcome = 'failed'
returning schedule_id, scheduled_at
