-- From type to type, however many tasks each has.
WITH RECURSIVE found (org, name) AS (
    (SELECT org, name FROM ready ORDER BY org, name LIMIT 1)
    UNION ALL
    SELECT next.org, next.name FROM found,
    LATERAL (SELECT org, name FROM ready WHERE (org, name) > (found.org, found.name)
             ORDER BY org, name LIMIT 1) AS next
)
SELECT org, name FROM found
