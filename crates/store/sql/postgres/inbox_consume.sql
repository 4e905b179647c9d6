-- Rows get their answer; rows without one are deleted. A row that is gone or has an answer is missing from the counts,
-- and the division by zero aborts the transaction.
WITH r AS (
    SELECT * FROM unnest($1::integer[], $2::uuid[], $3::uuid[], $4::bytea[]) AS r (org, run, id, answer)
), answered AS (
    UPDATE inbox SET answer = r.answer FROM r
    WHERE inbox.org = r.org AND inbox.run = r.run AND inbox.id = r.id AND inbox.answer IS NULL
      AND r.answer IS NOT NULL
    RETURNING 1
), deleted AS (
    DELETE FROM inbox USING r
    WHERE inbox.org = r.org AND inbox.run = r.run AND inbox.id = r.id AND inbox.answer IS NULL AND r.answer IS NULL
    RETURNING 1
)
SELECT 1 / (CASE
    WHEN (SELECT count(*) FROM answered) + (SELECT count(*) FROM deleted) = cardinality($1) THEN 1 ELSE 0 END)
