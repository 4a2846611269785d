select id from onceward.runs where kind = %(kind)s and business_key = %(business_key)s
