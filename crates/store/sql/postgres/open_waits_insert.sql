INSERT INTO open_waits (org, kind, name, run, step, deadline)
SELECT * FROM unnest($1::integer[], $2::text[], $3::text[], $4::uuid[], $5::bigint[], $6::bigint[])
ON CONFLICT DO NOTHING
