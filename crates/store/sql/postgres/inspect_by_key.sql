-- Includes hidden runs.
SELECT r.place, j.body
FROM unnest($1::bigint[], $2::integer[], $3::uuid[], $4::integer[]) AS r (place, org, run, seq),
LATERAL (SELECT body FROM journal WHERE org = r.org AND run = r.run AND seq = r.seq LIMIT 1) AS j
