SELECT seq, pos, body FROM snapshots WHERE org = $1 AND run = $2
