-- Runs in the same transaction snapshot as the read of the run and its snapshot row.
SELECT seq, body FROM journal
WHERE org = $1 AND run = $2
  AND seq > COALESCE((SELECT seq FROM snapshots WHERE org = $1 AND run = $2), 0)
ORDER BY seq
