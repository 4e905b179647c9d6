SELECT d.org, d.trigger, d.seq, d.id, d.at, d.outcome, d.reason, d.run, d.nominal, r.body
FROM deliveries d LEFT JOIN delivery_requests r ON r.org = d.org AND r.trigger = d.trigger AND r.seq = d.seq
WHERE d.org = $1 AND d.trigger = $2 AND d.id = $3
