-- Schedules, their ticks, and the epochs that fence a former leader (design D9).
create table onceward.schedules (
    app text not null,
    id text not null,
    partition int not null,
    rule jsonb not null,
    paused_because text,
    next_at timestamptz,
    last_at timestamptz,
    updated_at timestamptz not null default now(),
    primary key (app, id)
);
create index schedules_due on onceward.schedules (app, partition, next_at) where next_at is not null;

create table onceward.ticks (
    app text not null,
    schedule_id text not null,
    scheduled_at timestamptz not null,
    outcome text not null check (outcome in ('emitted', 'skipped', 'failed')),
    reason text,
    command_id uuid,
    epoch bigint not null,
    emitted_at timestamptz not null default now(),
    primary key (app, schedule_id, scheduled_at)
);

create table onceward.scheduler_epochs (
    app text not null,
    partition int not null,
    epoch bigint not null,
    leader uuid not null,
    led_since timestamptz not null default now(),
    primary key (app, partition)
);
