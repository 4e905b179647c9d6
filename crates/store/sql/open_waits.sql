SELECT run, step, deadline FROM open_waits
WHERE org = $1 AND kind = $2 AND name = $3 AND (run, step) > ($4, $5)
ORDER BY run, step LIMIT $6
