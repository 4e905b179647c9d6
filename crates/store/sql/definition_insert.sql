INSERT INTO definitions (org, hash, lowering, source, plan) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING
