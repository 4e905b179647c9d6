INSERT INTO timers (at, org, run) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING
