UPDATE runs SET head = $1, seq = $2 WHERE org = $3 AND id = $4
