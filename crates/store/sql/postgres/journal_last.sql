SELECT seq, body FROM journal WHERE org = $1 AND run = $2 ORDER BY seq DESC LIMIT 1
