SELECT org, id, workflow, gate, 0 FROM runs WHERE gate IS NOT NULL AND finished_at IS NULL AND status <> 'pending'
UNION ALL
SELECT org, id, workflow, gate, 1 FROM runs WHERE status = 'pending'
ORDER BY 2, 1
