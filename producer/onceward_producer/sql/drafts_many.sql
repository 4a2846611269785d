-- The columns of many drafts, as rows.draft_arrays() gives them.
unnest(
    cast(%s as uuid[]), cast(%s as text[]), cast(%s as text[]), cast(%s as text[]), cast(%s as bytea[]),
    cast(%s as text[]), cast(%s as int[]), cast(%s as int[]), cast(%s as text[]), cast(%s as uuid[]),
    cast(%s as text[]), cast(%s as text[]),
    cast(%s as text[]), cast(%s as float8[]), cast(%s as timestamptz[])
) with ordinality
