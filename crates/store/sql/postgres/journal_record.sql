SELECT body FROM journal WHERE org = $1 AND run = $2 AND seq = $3
