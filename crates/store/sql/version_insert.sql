INSERT INTO versions (org, workflow, number, hash, source, at, definition) VALUES ($1, $2, $3, $4, $5, $6, $7)
