SELECT status FROM runs WHERE org = $1 AND id = $2
