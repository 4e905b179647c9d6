INSERT INTO definitions (org, hash, source, plan) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING
