select 1
from pg_trigger t
join pg_class c on c.oid = t.tgrelid
join pg_namespace n on n.oid = c.relnamespace
where t.tgname = 'onceward_wake_relay' and n.nspname = %s and c.relname = %s
