-- Deletes relayed rows, some at a time.
delete from {table}
where ctid = any (array(select ctid from {table} where {xid} < %s::xid8 order by {xid} limit %s))
