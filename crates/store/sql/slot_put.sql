INSERT INTO seats (org, name, of, key, number, run, step, until) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (org, name, of, key, number)
DO UPDATE SET run = excluded.run, step = excluded.step, until = excluded.until
