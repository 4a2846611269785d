delete from onceward.workers where incarnation = %s
