SELECT org, run, id, body, written_at, sender FROM inbox
WHERE kind = $1 AND answer IS NULL AND (org, run, id) > ($2, $3, $4)
ORDER BY org, run, id LIMIT $5
