SELECT w.hash FROM unnest($1::bytea[]) AS r (hash), LATERAL (SELECT hash FROM waits WHERE hash = r.hash LIMIT 1) AS w
