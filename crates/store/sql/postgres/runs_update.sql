-- What a run pins at birth is not among these columns.
UPDATE runs
SET status = r.status, waiting = r.waiting, wake_at = r.wake_at, expires_at = r.expires_at,
    finished_at = r.finished_at, error_code = r.error_code, parked = r.parked
FROM unnest($1::integer[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[],
            $9::boolean[]) AS r (org, id, status, waiting, wake_at, expires_at, finished_at, error_code, parked)
WHERE runs.org = r.org AND runs.id = r.id
