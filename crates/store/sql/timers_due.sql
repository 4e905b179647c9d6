SELECT at, org, run FROM timers WHERE at <= $1 AND (at, org, run) > ($2, $3, $4) ORDER BY at, org, run LIMIT $5
