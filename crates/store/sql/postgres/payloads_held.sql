SELECT org, run, number FROM payloads JOIN unnest($1::integer[], $2::uuid[], $3::bigint[]) AS r (org, run, number)
USING (org, run, number)
