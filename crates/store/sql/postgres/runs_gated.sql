-- Of tasks nothing is said here: they have lanes instead of gates, and a timer until their time comes.
SELECT org, id, workflow, gate, false FROM runs
WHERE gate IS NOT NULL AND finished_at IS NULL AND status <> 'pending' AND form <> 'task'
UNION ALL
SELECT org, id, workflow, gate, true FROM runs WHERE status = 'pending' AND form <> 'task'
