SELECT org, trigger, seq, id, at, outcome, reason, run, nominal, NULL::bytea
FROM deliveries WHERE outcome = 'queued'
ORDER BY org, trigger, seq LIMIT $1
