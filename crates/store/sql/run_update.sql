-- The columns fixed when a run is created are not updated; setting `workflow` would also rewrite its index.
UPDATE runs
SET status = $1, waiting = $2, wake_at = $3, expires_at = $4, finished_at = $5, error_code = $6, failed_steps = $7,
    parked = $8, head = $9, seq = $10
WHERE org = $11 AND id = $12
