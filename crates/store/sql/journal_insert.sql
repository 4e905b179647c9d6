INSERT INTO journal (pos, org, run, seq, prev, body) VALUES ($1, $2, $3, $4, $5, $6)
