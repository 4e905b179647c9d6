INSERT INTO runs (org, id, workflow, workflow_name, version, hash, form, status, waiting, wake_at, created_at,
                  expires_at, finished_at, error_code, gate, parked, lowering, failed_steps)
SELECT * FROM unnest($1::integer[], $2::uuid[], $3::uuid[], $4::text[], $5::bigint[], $6::bytea[], $7::text[],
                     $8::text[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[],
                     $14::text[], $15::bytea[], $16::boolean[], $17::bigint[], $18::text[])
