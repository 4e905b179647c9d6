SELECT r.place, (SELECT seq FROM journal WHERE journal.org = r.org AND journal.run = r.run ORDER BY seq DESC LIMIT 1)
FROM unnest($1::bigint[], $2::integer[], $3::uuid[]) AS r (place, org, run)
