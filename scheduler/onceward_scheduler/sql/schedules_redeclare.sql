-- Another process, with older code, may have said that these are gone.
update onceward.schedules set undeclared_at = null, updated_at = clock_timestamp()
where app = %(app)s and undeclared_at is not null and id = any(%(ids)s::text[])
