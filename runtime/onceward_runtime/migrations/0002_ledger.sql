-- The ledger (design D3): one row for each command that a consumer group has seen; `state` says what became of it.
--   done, discarded, dead   final
--   running                 an external handler of the worker `incarnation` is at it
--   retrying                its retry record with this `attempt` is under way
--   parked                  it waits in onceward.parked
-- `attempts_before` were made before an operator's replay gave the command a new budget.
create table onceward.ledger (
    command_id uuid not null,
    consumer_group text not null,
    state text not null default 'done'
        check (state in ('done', 'running', 'retrying', 'parked', 'dead', 'discarded')),
    attempt int not null default 1,
    attempts_before int not null default 0,
    reason text,
    incarnation uuid,
    first_failed_at timestamptz,
    updated_at timestamptz not null default now(),
    primary key (command_id, consumer_group)
) partition by range (command_id);

-- Ids that are not UUIDv7, or from outside the prepared weeks.
create table onceward.ledger_default partition of onceward.ledger default;

-- The smallest version 7 UUID of an instant.
create function onceward.uuid_floor(at timestamptz) returns uuid
language sql immutable parallel safe as $$
    select rpad(lpad(to_hex(floor(extract(epoch from at) * 1000)::bigint), 12, '0'), 32, '0')::uuid
$$;

-- Makes the weekly ledger partitions from the current week to `ahead`; safe to call from several processes, again and again.
-- A week for which the default partition already holds rows is left to it.
create function onceward.prepare_ledger(ahead interval) returns int
language plpgsql as $$
declare
    week timestamptz := date_trunc('week', now(), 'UTC');
    made int := 0;
    name text;
begin
    perform pg_advisory_xact_lock(hashtext('onceward.prepare_ledger'));
    while week < now() + ahead loop
        name := 'ledger_' || to_char(week at time zone 'UTC', 'IYYY"w"IW');
        if to_regclass('onceward.' || name) is null and not exists (
            select from onceward.ledger_default
            where command_id >= onceward.uuid_floor(week) and command_id < onceward.uuid_floor(week + interval '7 days')
        ) then
            execute format(
                'create table onceward.%I partition of onceward.ledger for values from (%L) to (%L)',
                name, onceward.uuid_floor(week), onceward.uuid_floor(week + interval '7 days'));
            made := made + 1;
        end if;
        week := week + interval '7 days';
    end loop;
    return made;
end $$;

select onceward.prepare_ledger(interval '28 days');

-- One row for each execution that did not succeed.
create table onceward.attempts (
    command_id uuid not null,
    consumer_group text not null,
    attempt int not null,
    outcome text not null,
    reason text not null,
    error text,
    worker text not null,
    at timestamptz not null default now(),
    primary key (command_id, consumer_group, attempt)
);

-- A key whose head command is not resolved (design D5). Followers of the key are parked while its row exists.
--   retrying   the head waits for its retry record
--   draining   the head is resolved; parked followers are being run in sequence
--   dead       the head is a dead letter and the type's order is strict: an operator decides
-- Locks: whoever parks a follower holds FOR KEY SHARE; whoever runs the key's commands holds FOR NO KEY UPDATE; whoever
-- deletes the row holds FOR UPDATE and has looked for parked rows again under that lock.
create table onceward.holds (
    consumer_group text not null,
    lane text not null,
    key text not null,
    state text not null check (state in ('retrying', 'draining', 'dead')),
    head_id uuid not null,
    incarnation uuid,
    due_at timestamptz,
    since timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    primary key (consumer_group, lane, key)
);
create index holds_draining on onceward.holds (consumer_group, updated_at) where state = 'draining';

-- Commands that wait in PostgreSQL for a stated reason, in order of arrival.
create table onceward.parked (
    seq bigint generated always as identity,
    consumer_group text not null,
    command_id uuid not null,
    lane text not null,
    key text,
    reason text not null,
    attempt int not null default 1,
    topic text not null,
    partition int not null,
    "offset" bigint not null,
    timestamp_ms bigint not null,
    record_key bytea,
    payload bytea,
    headers json not null,
    parked_at timestamptz not null default now(),
    primary key (consumer_group, command_id)
);
create index parked_by_key on onceward.parked (consumer_group, lane, key, seq);
create index parked_by_reason on onceward.parked (consumer_group, reason, seq);

-- Commands given up on, with everything needed to judge and to replay them.
create table onceward.dead_letters (
    consumer_group text not null,
    command_id uuid not null,
    lane text not null,
    key text,
    type text,
    version int,
    tenant text,
    run_id uuid,
    item text,
    reason text not null,
    error text,
    attempts int not null,
    first_failed_at timestamptz,
    dead_at timestamptz not null default now(),
    topic text not null,
    partition int not null,
    "offset" bigint not null,
    timestamp_ms bigint not null,
    record_key bytea,
    payload bytea,
    headers json not null,
    worker text not null,
    code_version text,
    state text not null default 'open' check (state in ('open', 'replaying', 'resolved', 'discarded')),
    decided_by text,
    decided_because text,
    updated_at timestamptz not null default now(),
    primary key (consumer_group, command_id)
);
create index dead_letters_open on onceward.dead_letters (consumer_group, lane, reason, dead_at) where state = 'open';

-- Worker processes; a row whose lease has run out is a worker that died, and what it was running may be taken over.
create table onceward.workers (
    incarnation uuid primary key,
    consumer_group text not null,
    host text not null,
    pid int not null,
    code_version text,
    started_at timestamptz not null default now(),
    lease_until timestamptz not null,
    draining boolean not null default false
);
