DELETE FROM waits WHERE hash = $1 AND org = $2 AND run = $3
