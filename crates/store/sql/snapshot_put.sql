INSERT INTO snapshots (org, run, seq, pos, body) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (org, run) DO UPDATE SET seq = excluded.seq, pos = excluded.pos, body = excluded.body
