UPDATE runs SET listed = 1 WHERE org = $1 AND id = $2 AND listed = 0
