-- A row that is gone or has an answer is missing from the count, and the division by zero aborts the transaction.
WITH consumed AS (
    UPDATE inbox SET answer = r.answer
    FROM unnest($1::integer[], $2::uuid[], $3::uuid[], $4::bytea[]) AS r (org, run, id, answer)
    WHERE inbox.org = r.org AND inbox.run = r.run AND inbox.id = r.id AND inbox.answer IS NULL
    RETURNING 1
)
SELECT 1 / (CASE WHEN (SELECT count(*) FROM consumed) = cardinality($1) THEN 1 ELSE 0 END)
