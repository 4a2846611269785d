select id from onceward.runs where kind = cast(%s as text) and business_key = cast(%s as text)
