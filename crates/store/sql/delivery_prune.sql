DELETE FROM deliveries WHERE org = $1 AND trigger = $2 AND seq <= $3 AND outcome <> 'queued'
