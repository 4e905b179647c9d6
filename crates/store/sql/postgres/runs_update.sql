-- An INSERT with ON CONFLICT always finds the row by the primary key. An UPDATE with a join would be planned for the
-- table as it was when the statement was prepared, which may have been empty. The runs exist, so nothing is
-- inserted. If a run was deleted meanwhile, the index `runs_never` divides by zero for version -1, which aborts the
-- transaction. The columns fixed when a run is created are not updated.
INSERT INTO runs (org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at,
                  expires_at, finished_at, error_code, gate, parked, lowering, failed_steps)
SELECT org, id, id, '', -1, '', '', status, waiting, wake_at, 0, expires_at, finished_at, error_code, NULL, parked, 0,
       failed_steps
FROM unnest($1::integer[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::text[],
            $9::boolean[], $10::text[])
     AS r (org, id, status, waiting, wake_at, expires_at, finished_at, error_code, parked, failed_steps)
ON CONFLICT (org, id) DO UPDATE
SET status = excluded.status, waiting = excluded.waiting, wake_at = excluded.wake_at, expires_at = excluded.expires_at,
    finished_at = excluded.finished_at, error_code = excluded.error_code, parked = excluded.parked,
    failed_steps = excluded.failed_steps
