SELECT r.place, s.run, s.step, s.until
FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::smallint[], $5::text[], $6::bigint[])
     AS r (place, org, name, of, key, number),
LATERAL (SELECT run, step, until FROM seats
         WHERE org = r.org AND name = r.name AND of = r.of AND key = r.key AND number = r.number LIMIT 1) AS s
