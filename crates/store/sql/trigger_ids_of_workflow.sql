SELECT id FROM triggers WHERE org = $1 AND workflow = $2
