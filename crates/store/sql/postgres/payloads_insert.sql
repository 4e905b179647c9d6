INSERT INTO payloads (org, run, number, body)
SELECT * FROM unnest($1::integer[], $2::uuid[], $3::bigint[], $4::bytea[])
