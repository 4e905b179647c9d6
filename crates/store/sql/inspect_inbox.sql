SELECT i.org, i.run, i.kind FROM inbox i
WHERE i.kind = 'input' AND i.answer IS NULL AND i.sender IS NULL
  AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.org = i.org AND r.id = i.run)
