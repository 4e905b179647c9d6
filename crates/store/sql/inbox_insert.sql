INSERT INTO inbox (org, run, id, kind, body, written_at, sender) VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING
