INSERT INTO waits (hash, org, run, step, kind) VALUES ($1, $2, $3, $4, $5)
