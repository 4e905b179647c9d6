-- A seat is free when nobody has it, or when the time of whoever had it is over. One that is not is left out of the
-- count, and dividing by zero ends the transaction.
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
