SELECT DISTINCT key FROM ready WHERE org = $1 AND name = $2 AND ($3 IS NULL OR key > $3) ORDER BY key LIMIT $4
