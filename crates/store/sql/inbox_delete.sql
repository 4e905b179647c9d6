DELETE FROM inbox WHERE org = $1 AND run = $2 AND id = $3 AND answer IS NULL
