DELETE FROM journal WHERE org = $1 AND run = $2
