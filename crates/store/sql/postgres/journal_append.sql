-- A record must follow the one before it. `follows` says that one is not among those of this statement, so it is
-- looked for; where it is missing the number is missing too, which the table does not allow, and the transaction ends.
INSERT INTO journal (org, run, seq, body)
SELECT org, run,
       CASE WHEN NOT follows OR EXISTS (SELECT FROM journal p WHERE p.org = r.org AND p.run = r.run AND p.seq = r.seq - 1)
            THEN seq END,
       body
FROM unnest($1::integer[], $2::uuid[], $3::integer[], $4::boolean[], $5::bytea[]) AS r (org, run, seq, follows, body)
