-- The first conditions are the partial index's own, spelt out so that the planner may use it.
SELECT org, id, seq, head FROM runs
WHERE listed = 1 AND status <> 'completed' AND status IN ('pending', 'running', 'waiting', 'compensating', 'cancelling')
  AND parked = 0
