-- Seconds until the earliest delayed command is due; no row when there is none.
select extract(epoch from not_before - clock_timestamp())::float8 from onceward.delayed order by not_before limit 1
