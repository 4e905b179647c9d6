SELECT p.* FROM unnest($1::integer[], $2::uuid[], $3::bigint[]) AS r (org, run, number),
LATERAL (SELECT org, run, number FROM payloads WHERE org = r.org AND run = r.run AND number = r.number LIMIT 1) AS p
