SELECT hash FROM waits JOIN unnest($1::bytea[]) AS r (hash) USING (hash)
