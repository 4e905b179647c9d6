-- Locks in the order of the key, so that transactions cannot deadlock.
SELECT FROM triggers JOIN unnest($1::integer[], $2::uuid[]) AS r (org, id) ON triggers.org = r.org AND triggers.id = r.id
ORDER BY triggers.org, triggers.id FOR UPDATE OF triggers
