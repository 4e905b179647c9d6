INSERT INTO runs (org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at,
                  expires_at, finished_at, error_code, head, seq, gate, parked, lowering, failed_steps)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20)
ON CONFLICT DO NOTHING
