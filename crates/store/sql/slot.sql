SELECT run, step, until FROM seats WHERE org = $1 AND name = $2 AND of = $3 AND key = $4 AND number = $5
