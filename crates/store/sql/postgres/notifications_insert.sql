INSERT INTO notices (org, run, number, error)
SELECT org, run, number, '' FROM unnest($1::integer[], $2::uuid[], $3::bigint[]) AS r (org, run, number)
ON CONFLICT DO NOTHING
