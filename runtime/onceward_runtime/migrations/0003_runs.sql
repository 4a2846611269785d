-- Bulk operations (runs) and their members (items). An item is counted by its identity, so repeats change nothing.
-- Workers touch run_items only; `runs` and `run_stages` are written by the keeper of runs, one at a time.
create table onceward.runs (
    id uuid primary key,
    kind text not null,
    business_key text,
    params jsonb not null default '{}',
    state text not null default 'queued'
        check (state in ('queued', 'running', 'completed', 'completed_with_errors')),
    -- The outbox row to write at completion, and the id it was written with.
    follow_up jsonb,
    follow_up_id uuid,
    created_by text,
    created_at timestamptz not null default now(),
    progressed_at timestamptz not null default now(),
    completed_at timestamptz,
    check_after timestamptz not null default now()
);
create unique index runs_by_business_key on onceward.runs (kind, business_key) where business_key is not null;
create index runs_open on onceward.runs (check_after) where state in ('queued', 'running');
create index runs_by_age on onceward.runs (created_at);

-- The stages of a run, each with the number of items it expects and how many were counted last.
create table onceward.run_stages (
    run_id uuid not null references onceward.runs on delete cascade,
    stage text not null,
    position int not null,
    expected int not null check (expected >= 0),
    done int not null default 0,
    failed int not null default 0,
    retrying int not null default 0,
    primary key (run_id, stage)
);

-- No foreign key: its share lock on the row of the run would make every worker of a run meet there.
create table onceward.run_items (
    run_id uuid not null,
    stage text not null,
    item text not null,
    state text not null check (state in ('done', 'failed', 'retrying')),
    reason text,
    error text,
    consumer_group text,
    command_id uuid,
    at timestamptz not null default now(),
    primary key (run_id, stage, item)
);
create index run_items_failed on onceward.run_items (run_id, stage) where state = 'failed';
create index run_items_by_command on onceward.run_items (command_id) where state = 'failed';
