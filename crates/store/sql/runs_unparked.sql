-- The first condition is the partial index's own, spelt out so that the planner may use it.
SELECT org, id, seq, head FROM runs
WHERE status <> 'completed' AND status IN ('pending', 'running', 'waiting', 'compensating', 'cancelling')
  AND parked = 0
