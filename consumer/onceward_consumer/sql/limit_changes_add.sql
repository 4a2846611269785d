insert into onceward.limit_changes (consumer_group, scope, action, before, after, set_by, because)
values (%(group)s, %(scope)s, %(action)s, %(before)s, %(after)s, %(by)s, %(because)s)
