-- A loose index scan: one index lookup per type, however many tasks it has.
WITH RECURSIVE types AS (
  (SELECT org, name FROM ready ORDER BY org, name LIMIT 1)
  UNION ALL
  SELECT next.org, next.name
  FROM types, LATERAL (
    SELECT org, name FROM ready WHERE (ready.org, ready.name) > (types.org, types.name) ORDER BY org, name LIMIT 1
  ) AS next
)
SELECT org, name FROM types
