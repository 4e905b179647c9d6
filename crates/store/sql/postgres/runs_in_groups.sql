-- Without single tasks: they have key queues instead of concurrency groups, and a timer until they are due.
SELECT org, id, workflow, gate, false FROM runs
WHERE gate IS NOT NULL AND finished_at IS NULL AND status <> 'pending' AND form <> 'task'
UNION ALL
SELECT org, id, workflow, gate, true FROM runs WHERE status = 'pending' AND form <> 'task'
