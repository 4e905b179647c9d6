INSERT INTO workflow_pauses (org, workflow, at, actor, note) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT DO NOTHING
