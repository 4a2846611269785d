-- The table has been read up to this position for the slot as it is now.
insert into onceward.relay_slots (slot, system, acknowledged, swept_at)
values (%s, %s, %s, now())
on conflict (slot) do update
set system = excluded.system, acknowledged = excluded.acknowledged, swept_at = now(), updated_at = now()
