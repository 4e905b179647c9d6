INSERT INTO waits (hash, org, run, step, kind)
SELECT * FROM unnest($1::bytea[], $2::integer[], $3::uuid[], $4::bigint[], $5::text[])
