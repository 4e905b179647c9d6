-- The first condition repeats that of the partial index, so that the planner can use the index.
SELECT org, id FROM runs
WHERE status <> 'completed' AND status IN ('pending', 'running', 'waiting', 'compensating', 'cancelling')
  AND NOT parked
