SELECT id FROM inbox WHERE org = $1 AND (run = $2 OR sender = $2) AND answer IS NULL LIMIT 1
