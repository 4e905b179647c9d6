SELECT number, hash, source, at FROM versions WHERE org = $1 AND workflow = $2 AND hash = $3 ORDER BY number DESC LIMIT 1
