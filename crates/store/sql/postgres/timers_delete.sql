DELETE FROM timers USING unnest($1::bigint[], $2::integer[], $3::uuid[]) AS r (at, org, run)
WHERE timers.at = r.at AND timers.org = r.org AND timers.run = r.run
