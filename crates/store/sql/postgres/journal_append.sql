-- A record must follow the previous one of its run. `follows` is true when that record is not part of this
-- statement: it must then exist in the journal. If it does not, `seq` becomes NULL, which violates NOT NULL and
-- aborts the transaction.
INSERT INTO journal (org, run, seq, body)
SELECT org, run,
       CASE WHEN NOT follows OR EXISTS (SELECT FROM journal p WHERE p.org = r.org AND p.run = r.run AND p.seq = r.seq - 1)
            THEN seq END,
       body
FROM unnest($1::integer[], $2::uuid[], $3::integer[], $4::boolean[], $5::bytea[]) AS r (org, run, seq, follows, body)
