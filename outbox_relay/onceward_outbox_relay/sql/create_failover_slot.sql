-- PostgreSQL 17: a slot that is copied to standby servers.
select pg_create_logical_replication_slot(%s, 'pgoutput', failover => true)
