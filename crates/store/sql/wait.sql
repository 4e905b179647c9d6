SELECT org, run, step, kind FROM waits
WHERE hash = $1
  AND NOT EXISTS (SELECT 1 FROM runs WHERE runs.org = waits.org AND runs.id = waits.run AND deleted_at IS NOT NULL)
