SELECT seq, body FROM journal WHERE org = $1 AND run = $2 AND seq > $3 ORDER BY seq LIMIT $4
