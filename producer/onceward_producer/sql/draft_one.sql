-- One draft's columns, as rows.draft_values() gives them.
(values (
    cast(%s as uuid), cast(%s as text), cast(%s as text), cast(%s as text), cast(%s as bytea),
    cast(%s as text), cast(%s as int), cast(%s as int), cast(%s as text), cast(%s as uuid),
    cast(%s as text), cast(%s as text),
    cast(%s as text), cast(%s as float8), cast(%s as timestamptz), 1
))
