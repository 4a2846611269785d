create or replace function onceward.wake_relay() returns trigger
language plpgsql as $$
begin
    perform pg_notify('onceward_outbox', '');
    return null;
end $$
