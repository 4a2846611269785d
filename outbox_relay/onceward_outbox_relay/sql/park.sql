-- Keeps one row; a row that comes a second time stays as it is.
insert into onceward.outbox_parked (seq, id, reason, error, record_topic, record_key, record_value, record_headers)
values (%s, %s, %s, %s, %s, %s, %s, %s)
on conflict (seq) do nothing
