INSERT INTO labels (org, key, value, run) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING
