-- In the same view as the snapshot.
SELECT seq, body FROM journal
WHERE org = $1 AND run = $2
  AND seq > COALESCE((SELECT seq FROM snapshots WHERE org = $1 AND run = $2), 0)
ORDER BY seq
