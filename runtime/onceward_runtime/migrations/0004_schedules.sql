-- Schedules, their ticks, and the epochs that fence a former leader (design D9). All instants are the database's.
create table onceward.schedules (
    app text not null,
    id text not null,
    partition int not null,
    rule jsonb not null,
    paused_because text,
    -- The application's code no longer declares it: kept and shown, not emitted.
    undeclared_at timestamptz,
    -- The first tick that has not been decided, and when to look at it: later than that after failures.
    next_at timestamptz,
    due_at timestamptz,
    last_at timestamptz,
    failures int not null default 0,
    updated_at timestamptz not null default now(),
    primary key (app, id)
);
create index schedules_due on onceward.schedules (app, partition, due_at)
    where due_at is not null and paused_because is null and undeclared_at is null;

-- One row an instant, whatever became of it; failed ones are tried again.
create table onceward.ticks (
    app text not null,
    schedule_id text not null,
    scheduled_at timestamptz not null,
    outcome text not null check (outcome in ('emitted', 'skipped', 'failed')),
    reason text,
    command_ids uuid[] not null default '{}',
    epoch bigint not null,
    emitted_at timestamptz not null default clock_timestamp(),
    primary key (app, schedule_id, scheduled_at)
);
create index ticks_by_time on onceward.ticks (scheduled_at);

create table onceward.scheduler_epochs (
    app text not null,
    partition int not null,
    epoch bigint not null,
    leader uuid not null,
    led_since timestamptz not null default now(),
    primary key (app, partition)
);
