SELECT hash FROM versions WHERE org = $1 AND workflow = $2 AND number = $3
