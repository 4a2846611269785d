-- Up to `drained` a draining key has no followers left: where reading goes on. What was deleted stays in the index for a while,
-- and would be read again and again before the first that is left.
alter table onceward.holds add column drained bigint not null default 0;

-- Followers are looked for by key, everything else by reason. One index for each, so that no plan takes the wrong one.
drop index onceward.parked_by_key;
drop index onceward.parked_by_reason;
create index parked_followers on onceward.parked (consumer_group, lane, key, seq) where reason = 'held';
create index parked_by_reason on onceward.parked (consumer_group, reason, seq) where reason <> 'held';

-- Both tables are empty for days, and full within a second when something fails. A plan that was made while a table had few
-- pages reads all of it, and is kept; so they have a few hundred pages from the start, and keep them.
alter table onceward.holds set (vacuum_truncate = off, fillfactor = 10);
insert into onceward.holds (consumer_group, lane, key, state, head_id)
select '', '', number::text, 'dead', gen_random_uuid() from generate_series(1, 2000) as number;
delete from onceward.holds where consumer_group = '';
alter table onceward.holds set (fillfactor = 70);
alter table onceward.parked set (vacuum_truncate = off);
insert into onceward.parked (consumer_group, command_id, lane, reason, topic, partition, "offset", timestamp_ms, headers, payload)
select '', gen_random_uuid(), '', '', '', 0, 0, 0, '[]', convert_to(repeat('x', 1000), 'utf8') from generate_series(1, 2000);
delete from onceward.parked where consumer_group = '';

-- Why the last attempt of a command failed that was given up on because its attempts, or its time, were used up.
alter table onceward.dead_letters add column cause text;
comment on column onceward.dead_letters.cause is
    'The reason code of the last failure, where `reason` only says that attempts or time were used up.';
