-- The outbox (design D2): one row a record, read by the relay from the write-ahead log, and deleted once Kafka has it.
-- `seq` is the key, not `id`: a retry of a command is a second row with the same id.
create table onceward.outbox (
    seq bigint generated always as identity primary key,
    id uuid not null,
    aggregatetype text not null,
    aggregateid text,
    type text not null,
    payload bytea,
    topic text not null,
    version int not null default 1,
    attempt int not null default 1,
    tenant text,
    run_id uuid,
    traceparent text,
    context text,
    xid xid8 not null default pg_current_xact_id(),
    created_at timestamptz not null default now()
);

-- Deleted by xid, so that clean-up needs no marks on rows.
create index outbox_by_xid on onceward.outbox (xid);

-- Exact duplicates are dropped at enqueue while the window is open.
create table onceward.dedupe (
    type text not null,
    dedupe_key text not null,
    command_id uuid not null,
    expires_at timestamptz not null,
    primary key (type, dedupe_key)
);
create index dedupe_by_expiry on onceward.dedupe (expires_at);

-- Commands that must not run before an instant; moved to the outbox when due.
create table onceward.delayed (
    seq bigint generated always as identity primary key,
    not_before timestamptz not null,
    id uuid not null unique,
    aggregatetype text not null,
    aggregateid text,
    type text not null,
    payload bytea,
    topic text not null,
    version int not null default 1,
    attempt int not null default 1,
    tenant text,
    run_id uuid,
    traceparent text,
    context text
);
create index delayed_by_time on onceward.delayed (not_before, seq);

-- Rows that Kafka will never accept as they are (design D8), and the later rows of their topic and key, which follow.
--   parked      it waits; the reason `follows` means: for an earlier row of its key
--   replaying   an operator asked the relay to try again
--   replayed    Kafka has it now
--   discarded   an operator gave it up
create table onceward.outbox_parked (
    seq bigint primary key,
    id text,
    reason text not null,
    error text not null,
    record_topic text,
    record_key bytea,
    record_value bytea,
    record_headers json not null,
    parked_at timestamptz not null default now(),
    state text not null default 'parked' check (state in ('parked', 'replaying', 'replayed', 'discarded')),
    decided_by text,
    decided_because text,
    updated_at timestamptz not null default now()
);
-- By hashes: what is parked may have a topic or a key that is too long for an index.
create index outbox_parked_by_key on onceward.outbox_parked (hashtextextended(record_topic, 0), sha256(record_key), seq)
    where state in ('parked', 'replaying');

-- What a relay must remember of its slot. The relay writes a position here before it confirms it to the server, so a slot
-- that is ahead of `acknowledged` was made or moved by somebody else, and the table must be swept.
create table onceward.relay_slots (
    slot text primary key,
    system text not null,
    acknowledged pg_lsn not null,
    swept_at timestamptz not null,
    updated_at timestamptz not null default now()
);
