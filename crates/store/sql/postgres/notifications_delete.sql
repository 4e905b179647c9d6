DELETE FROM notices USING unnest($1::integer[], $2::uuid[], $3::bigint[]) AS r (org, run, number)
WHERE notices.org = r.org AND notices.run = r.run AND notices.number = r.number
