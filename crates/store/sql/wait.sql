SELECT org, run, step, kind FROM (SELECT org, run, step, kind FROM waits WHERE hash = $1 LIMIT 1) AS w
WHERE (SELECT deleted_at FROM runs WHERE runs.org = w.org AND runs.id = w.run) IS NULL
