-- Business keys whose effect a handler has applied, `ctx.effect_once`: written in the transaction of the effect, so a key is
-- here if and only if its effect is. Housekeeping deletes what is older than the ledger remembers.
create table onceward.effects (
    consumer_group text not null,
    key text not null,
    command_id uuid not null,
    applied_at timestamptz not null default now(),
    primary key (consumer_group, key)
);
create index effects_by_time on onceward.effects (applied_at);
