INSERT INTO notices (org, run, number, error) VALUES ($1, $2, $3, '') ON CONFLICT DO NOTHING
