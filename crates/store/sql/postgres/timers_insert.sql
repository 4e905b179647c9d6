INSERT INTO timers (at, org, run) SELECT * FROM unnest($1::bigint[], $2::integer[], $3::uuid[]) ON CONFLICT DO NOTHING
