-- What is hidden is passed over, and what was erased is not there.
SELECT r.place, journal.body
FROM unnest($1::bigint[], $2::integer[], $3::uuid[], $4::integer[]) AS r (place, org, run, seq)
JOIN journal ON journal.org = r.org AND journal.run = r.run AND journal.seq = r.seq
WHERE NOT EXISTS (SELECT FROM runs WHERE runs.org = r.org AND runs.id = r.run AND deleted_at IS NOT NULL)
