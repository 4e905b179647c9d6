INSERT INTO grants (org, run, step, attempt, fence, worker, lease_us, given_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (org, run, step) DO UPDATE
SET attempt = excluded.attempt, fence = excluded.fence, worker = excluded.worker,
    lease_us = excluded.lease_us, given_at = excluded.given_at
