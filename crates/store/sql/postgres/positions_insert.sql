INSERT INTO positions (first, records) SELECT * FROM unnest($1::bigint[], $2::bytea[])
