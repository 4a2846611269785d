select pg_create_logical_replication_slot(%s, 'pgoutput')
