SELECT org, run, id, body, written_at, sender, kind FROM inbox
WHERE org = $1 AND run = $2 AND answer IS NULL ORDER BY id LIMIT $3
