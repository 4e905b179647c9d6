SELECT org, trigger, seq, id, at, outcome, reason, run, nominal, NULL::bytea
FROM deliveries WHERE org = $1 AND trigger = $2 AND outcome = 'queued'
ORDER BY seq LIMIT $3
