-- What a run pins at birth is not among these columns; naming `workflow` would also rewrite its index.
UPDATE runs
SET status = $1, waiting = $2, wake_at = $3, expires_at = $4, finished_at = $5, error_code = $6, parked = $7,
    head = $8, seq = $9
WHERE org = $10 AND id = $11
