SELECT org, workflow, at, actor, note FROM workflow_pauses ORDER BY org, workflow
