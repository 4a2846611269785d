-- What does the publication cover?
select
    p.puballtables,
    p.pubinsert,
    p.pubupdate or p.pubdelete or p.pubtruncate,
    coalesce(
        (select array_agg(t.schemaname || '.' || t.tablename order by 1) from pg_publication_tables t
         where t.pubname = p.pubname), '{}')
from pg_publication p
where p.pubname = %s
