DELETE FROM ready
USING unnest($1::integer[], $2::text[], $3::text[], $4::bigint[], $5::uuid[], $6::bigint[])
      AS r (org, name, key, priority, run, step)
WHERE ready.org = r.org AND ready.name = r.name AND ready.key = r.key AND ready.priority = r.priority
  AND ready.run = r.run AND ready.step = r.step
