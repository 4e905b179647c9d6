SELECT at, org, run FROM timers WHERE at <= $1 ORDER BY at, org, run LIMIT $2
