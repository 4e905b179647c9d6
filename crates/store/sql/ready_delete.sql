DELETE FROM ready WHERE org = $1 AND name = $2 AND key = $3 AND priority = $4 AND run = $5 AND step = $6
