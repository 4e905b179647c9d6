UPDATE inbox SET answer = $1 WHERE org = $2 AND run = $3 AND id = $4 AND answer IS NULL
