update onceward.schedules set undeclared_at = clock_timestamp(), updated_at = clock_timestamp()
where app = %(app)s and undeclared_at is null and not id = any(%(ids)s::text[])
returning id
