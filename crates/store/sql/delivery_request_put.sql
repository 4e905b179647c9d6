INSERT INTO delivery_requests (org, trigger, seq, body) VALUES ($1, $2, $3, $4)
ON CONFLICT (org, trigger, seq) DO UPDATE SET body = excluded.body
