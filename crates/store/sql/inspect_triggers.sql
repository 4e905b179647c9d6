SELECT org, id, workflow, kind, config, enabled, next_at FROM triggers ORDER BY org, id
