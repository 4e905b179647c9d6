-- In one order for everybody, so that nobody waits in a circle.
SELECT FROM triggers JOIN unnest($1::integer[], $2::uuid[]) AS r (org, id) ON triggers.org = r.org AND triggers.id = r.id
ORDER BY triggers.org, triggers.id FOR UPDATE OF triggers
