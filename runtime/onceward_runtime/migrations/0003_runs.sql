-- Bulk operations (runs) and their members (items). An item is counted by its identity, so repeats change nothing.
create table onceward.runs (
    id uuid primary key,
    kind text not null,
    business_key text,
    params jsonb not null default '{}',
    state text not null default 'queued'
        check (state in ('queued', 'running', 'completed', 'completed_with_errors')),
    follow_up jsonb,
    follow_up_id uuid,
    created_by text,
    created_at timestamptz not null default now(),
    progressed_at timestamptz not null default now(),
    completed_at timestamptz
);
create unique index runs_by_business_key on onceward.runs (kind, business_key) where business_key is not null;
create index runs_open on onceward.runs (created_at) where state in ('queued', 'running');

-- The stages of a run, each with the number of items it expects.
create table onceward.run_stages (
    run_id uuid not null references onceward.runs on delete cascade,
    stage text not null,
    position int not null,
    expected int not null check (expected >= 0),
    primary key (run_id, stage)
);

create table onceward.run_items (
    run_id uuid not null references onceward.runs on delete cascade,
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
