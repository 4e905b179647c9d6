-- What a run pins at birth is not among these columns; naming `workflow` would also rewrite its index.
UPDATE runs
SET status = $1, waiting = $2, wake_at = $3, expires_at = $4, finished_at = $5, error_code = $6, head = $7, seq = $8
WHERE org = $9 AND id = $10
