-- A LATERAL lookup per row, so that the plan uses the index even if it was made for an empty table. Rows of `ready`
-- are never updated, so the ctid stays valid.
DELETE FROM ready WHERE ctid = ANY (ARRAY(
    SELECT t.ctid
    FROM unnest($1::integer[], $2::text[], $3::text[], $4::bigint[], $5::uuid[], $6::bigint[])
         AS r (org, name, key, priority, run, step),
    LATERAL (SELECT ctid FROM ready
             WHERE org = r.org AND name = r.name AND key = r.key AND priority = r.priority AND run = r.run
               AND step = r.step
             LIMIT 1) AS t))
