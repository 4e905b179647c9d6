INSERT INTO ready (org, name, key, priority, run, step)
SELECT * FROM unnest($1::integer[], $2::text[], $3::text[], $4::bigint[], $5::uuid[], $6::bigint[])
ON CONFLICT DO NOTHING
