INSERT INTO deliveries (org, trigger, seq, id, at, outcome, reason, run, nominal)
SELECT $1, $2, COALESCE((SELECT max(seq) FROM deliveries WHERE org = $1 AND trigger = $2), 0) + 1, $3, $4, $5, $6, $7, $8
WHERE EXISTS (SELECT 1 FROM triggers WHERE org = $1 AND id = $2)
ON CONFLICT (org, trigger, id) DO UPDATE
SET at = excluded.at, outcome = excluded.outcome, reason = excluded.reason, run = excluded.run, nominal = excluded.nominal
WHERE deliveries.outcome <> 'started'
RETURNING seq
