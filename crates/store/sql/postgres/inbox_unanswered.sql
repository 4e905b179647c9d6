SELECT r.org, r.run, r.id
FROM unnest($1::integer[], $2::uuid[], $3::uuid[]) AS r (org, run, id),
LATERAL (SELECT 1 FROM inbox WHERE org = r.org AND run = r.run AND id = r.id AND answer IS NULL LIMIT 1) AS t
