UPDATE triggers SET last_run = $1, last_run_at = $2 WHERE org = $3 AND id = $4
