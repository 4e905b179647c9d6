-- Deleted workflows count: an id is never reused.
SELECT 1 FROM workflows WHERE org = $1 AND id = $2
