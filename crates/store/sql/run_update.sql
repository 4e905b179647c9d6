-- The columns fixed when a run is created are not updated; setting `workflow` would also rewrite its index.
UPDATE runs
SET status = $1, waiting = $2, wake_at = $3, expires_at = $4, finished_at = $5, error_code = $6, parked = $7,
    head = $8, seq = $9
WHERE org = $10 AND id = $11
