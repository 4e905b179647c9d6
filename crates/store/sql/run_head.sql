-- And whether its row says no more than that it runs and waits for others: then taking it up need not be written.
SELECT seq, head, listed,
       parked = 1 AND status = 'running' AND wake_at IS NULL AND finished_at IS NULL AND error_code IS NULL, expires_at
FROM runs WHERE org = $1 AND id = $2
