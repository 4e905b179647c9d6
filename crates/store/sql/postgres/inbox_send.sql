INSERT INTO inbox (org, run, id, kind, body, written_at, sender)
SELECT * FROM unnest($1::integer[], $2::uuid[], $3::uuid[], $4::text[], $5::bytea[], $6::bigint[], $7::uuid[])
ON CONFLICT DO NOTHING
