-- A LATERAL lookup per row, so that the plan uses the index even if it was made for an empty table. A slot that
-- another task takes while this statement waits for the row is not deleted.
DELETE FROM seats WHERE ctid = ANY (ARRAY(
    SELECT t.ctid
    FROM unnest($1::integer[], $2::text[], $3::smallint[], $4::text[], $5::bigint[], $6::uuid[], $7::bigint[])
         AS r (org, name, of, key, number, run, step),
    LATERAL (SELECT ctid FROM seats
             WHERE org = r.org AND name = r.name AND of = r.of AND key = r.key AND number = r.number AND run = r.run
               AND step = r.step
             LIMIT 1) AS t))
