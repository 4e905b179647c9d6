SELECT org, name, of, key, number, run, step, until FROM seats WHERE org = $1 AND name = $2 ORDER BY of, key, number
