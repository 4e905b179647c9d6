SELECT org, workflow, at, actor, note FROM workflow_pauses WHERE org = $1 AND workflow = $2
