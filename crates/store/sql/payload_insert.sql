INSERT INTO payloads (org, run, number, body) VALUES ($1, $2, $3, $4)
