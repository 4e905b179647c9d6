-- How many of these records are there as they were sent.
SELECT count(*)
FROM unnest($1::integer[], $2::uuid[], $3::integer[], $4::bytea[]) AS r (org, run, seq, body)
JOIN journal ON journal.org = r.org AND journal.run = r.run AND journal.seq = r.seq AND journal.body = r.body
