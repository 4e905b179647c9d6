INSERT INTO idempotency (org, scope, key, made, fingerprint, created_at)
SELECT * FROM unnest($1::integer[], $2::text[], $3::text[], $4::uuid[], $5::bytea[], $6::bigint[])
