SELECT definition FROM versions WHERE org = $1 AND workflow = $2 AND number = $3
