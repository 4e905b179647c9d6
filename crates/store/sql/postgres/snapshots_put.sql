INSERT INTO snapshots (org, run, seq, body)
SELECT * FROM unnest($1::integer[], $2::uuid[], $3::integer[], $4::bytea[])
ON CONFLICT (org, run) DO UPDATE SET seq = excluded.seq, body = excluded.body
