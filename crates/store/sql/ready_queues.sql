-- In the order of the primary key, so that each key queue is counted in one pass.
SELECT org, name, key, count(*) FROM ready
WHERE (org, name, key) > ($1, $2, $3)
GROUP BY org, name, key
ORDER BY org, name, key LIMIT $4
