-- A loose index scan: one index lookup per key, however many tasks it has.
WITH RECURSIVE keys AS (
  (SELECT key FROM ready WHERE org = $1 AND name = $2 AND ($3::text IS NULL OR key > $3) ORDER BY key LIMIT 1)
  UNION ALL
  SELECT next.key
  FROM keys, LATERAL (
    SELECT key FROM ready WHERE org = $1 AND name = $2 AND ready.key > keys.key ORDER BY key LIMIT 1
  ) AS next
)
SELECT key FROM keys LIMIT $4
