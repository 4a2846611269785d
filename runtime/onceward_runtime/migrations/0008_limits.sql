-- Limits that hold over all workers of a group (design D7). A scope is `lane:…`, `type:…`, `destination:…`, `tenant:…`, or
-- `tenant:*` for each tenant that has no limit of its own.

-- What operators set while workers run; it goes before what the app declares. Workers read it every second.
create table onceward.limits (
    consumer_group text not null,
    scope text not null,
    concurrency int check (concurrency >= -1),     -- null: as declared; -1: none
    rate text,                                     -- null: as declared; `off`: none; else like 600/m
    breaker text check (breaker in ('off')),       -- null: as declared
    paused boolean not null default false,
    set_by text not null,
    because text not null,
    updated_at timestamptz not null default now(),
    primary key (consumer_group, scope)
);

-- Every change of it, for the record.
create table onceward.limit_changes (
    id bigint generated always as identity primary key,
    consumer_group text not null,
    scope text not null,
    action text not null check (action in ('set', 'clear', 'pause', 'resume')),
    before jsonb,
    after jsonb,
    set_by text not null,
    because text not null,
    at timestamptz not null default clock_timestamp()
);

-- The bucket of a rate and the state of a breaker. Whoever changes either, or a share below, holds this row's lock.
create table onceward.limit_states (
    consumer_group text not null,
    scope text not null,
    tokens double precision,
    filled_at double precision not null default 0,  -- seconds of clock_timestamp()
    circuit jsonb,
    declared text,  -- what the app says, for people
    updated_at timestamptz not null default now(),
    primary key (consumer_group, scope)
) with (fillfactor = 50);

-- What a worker has of a limit's permits, and how many it could use. It counts while the worker's lease runs.
create table onceward.limit_shares (
    consumer_group text not null,
    scope text not null,
    incarnation uuid not null,
    permits int not null,
    wanted int not null,
    primary key (consumer_group, scope, incarnation)
) with (fillfactor = 50);

-- Parked commands that operators gave up, for the record; each then goes its last round and ends as discarded.
create table onceward.parked_decisions (
    id bigint generated always as identity primary key,
    consumer_group text not null,
    command_id uuid not null,
    lane text not null,
    key text,
    reason text not null,
    decided_by text not null,
    because text not null,
    at timestamptz not null default clock_timestamp()
);
