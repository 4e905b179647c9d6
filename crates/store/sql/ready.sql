SELECT priority, run, step FROM ready
WHERE org = $1 AND name = $2 AND key = $3 AND (priority, run, step) > ($4, $5, $6)
ORDER BY priority, run, step LIMIT $7
