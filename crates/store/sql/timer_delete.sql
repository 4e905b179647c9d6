DELETE FROM timers WHERE at = $1 AND org = $2 AND run = $3
