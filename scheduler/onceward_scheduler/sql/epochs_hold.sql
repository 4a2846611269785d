-- The epochs as they are, held until the end of this transaction: nobody becomes leader meanwhile.
select partition, epoch from onceward.scheduler_epochs
where app = %(app)s and partition = any(%(partitions)s::int[])
order by partition
for share
