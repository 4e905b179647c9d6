-- From key to key, however many tasks each has.
WITH RECURSIVE found (key) AS (
    (SELECT key FROM ready WHERE org = $1 AND name = $2 AND ($3::text IS NULL OR key > $3)
     ORDER BY key LIMIT 1)
    UNION ALL
    SELECT next.key FROM found,
    LATERAL (SELECT key FROM ready WHERE org = $1 AND name = $2 AND key > found.key ORDER BY key LIMIT 1) AS next
)
SELECT key FROM found LIMIT $4
