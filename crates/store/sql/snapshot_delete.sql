DELETE FROM snapshots WHERE org = $1 AND run = $2
