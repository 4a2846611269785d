-- What became of items, many at once. Done is final: nothing changes it, and it replaces everything else.
insert into onceward.run_items as known (run_id, stage, item, state, reason, error, consumer_group, command_id)
select * from unnest(
    %(run_ids)s::uuid[], %(stages)s::text[], %(items)s::text[], %(states)s::text[],
    %(reasons)s::text[], %(errors)s::text[], %(groups)s::text[], %(command_ids)s::uuid[])
on conflict (run_id, stage, item) do update set
    state = excluded.state, reason = excluded.reason, error = excluded.error,
    consumer_group = excluded.consumer_group, command_id = excluded.command_id, at = now()
where known.state <> 'done'
