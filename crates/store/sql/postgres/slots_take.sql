-- A slot is free if it has no row or its row has expired. A slot that is not free is missing from the count, and the
-- division by zero aborts the transaction.
WITH taken AS (
    INSERT INTO seats (org, name, of, key, number, run, step, until)
    SELECT org, name, of, key, number, run, step, until
    FROM unnest($1::integer[], $2::text[], $3::smallint[], $4::text[], $5::bigint[], $6::uuid[], $7::bigint[],
                $8::bigint[]) AS r (org, name, of, key, number, run, step, until)
    ON CONFLICT (org, name, of, key, number)
    DO UPDATE SET run = excluded.run, step = excluded.step, until = excluded.until
    WHERE seats.until <= $9
    RETURNING 1
)
SELECT 1 / (CASE WHEN (SELECT count(*) FROM taken) = cardinality($1) THEN 1 ELSE 0 END)
