DELETE FROM waits WHERE org = $1 AND run = $2
