-- How many of these records exist exactly as they were sent.
SELECT count(*)
FROM unnest($1::integer[], $2::uuid[], $3::integer[], $4::bytea[]) AS r (org, run, seq, body)
WHERE (SELECT body FROM journal WHERE org = r.org AND run = r.run AND seq = r.seq) = r.body
