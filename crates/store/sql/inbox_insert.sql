INSERT INTO inbox (org, run, id, kind, body, written_at) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING
