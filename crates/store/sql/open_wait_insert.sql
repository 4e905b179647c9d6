INSERT INTO open_waits (org, kind, name, run, step, deadline) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING
