-- Of tasks nothing is said here: they have lanes instead of gates, and a timer until their time comes.
SELECT org, id, workflow, gate, 0 FROM runs
WHERE gate IS NOT NULL AND finished_at IS NULL AND status <> 'pending' AND form <> 'task'
UNION ALL
SELECT org, id, workflow, gate, 1 FROM runs WHERE status = 'pending' AND form <> 'task'
ORDER BY 2, 1
