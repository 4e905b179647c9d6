INSERT INTO ready (org, name, key, priority, run, step) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING
