-- In the order of the table, each lane counted as it is passed.
SELECT org, name, key, count(*) FROM ready
WHERE (org, name, key) > ($1, $2, $3)
GROUP BY org, name, key
ORDER BY org, name, key LIMIT $4
