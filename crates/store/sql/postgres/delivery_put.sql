-- Inserts a line into a trigger's log, or replaces it unless it says that a run was started. Does nothing if the
-- trigger does not exist. Also stores the request, deletes the oldest lines and requests, and updates the trigger's
-- last run. The caller has locked the trigger.
WITH line AS (
    INSERT INTO deliveries (org, trigger, seq, id, at, outcome, reason, run, nominal)
    SELECT $1, $2, COALESCE((SELECT max(seq) FROM deliveries WHERE org = $1 AND trigger = $2), 0) + 1,
           $3, $4, $5, $6, $7, $8
    WHERE EXISTS (SELECT FROM triggers WHERE org = $1 AND id = $2)
    ON CONFLICT (org, trigger, id) DO UPDATE
    SET at = excluded.at, outcome = excluded.outcome, reason = excluded.reason, run = excluded.run,
        nominal = excluded.nominal
    WHERE deliveries.outcome <> 'started'
    RETURNING seq
), request AS (
    INSERT INTO delivery_requests (org, trigger, seq, body)
    SELECT $1, $2, seq, $9 FROM line WHERE $9::bytea IS NOT NULL
    ON CONFLICT (org, trigger, seq) DO UPDATE SET body = excluded.body
), old_requests AS (
    DELETE FROM delivery_requests
    WHERE org = $1 AND trigger = $2 AND $9::bytea IS NOT NULL AND seq <= (SELECT seq FROM line) - $10
), old_lines AS (
    DELETE FROM deliveries
    WHERE org = $1 AND trigger = $2 AND seq <= (SELECT seq FROM line) - $11 AND outcome <> 'queued'
)
UPDATE triggers SET last_run = $7, last_run_at = $4
WHERE org = $1 AND id = $2 AND $7::uuid IS NOT NULL AND EXISTS (SELECT FROM line)
