-- A LATERAL lookup per row, so that the plan uses the index even if it was made for an empty table. Rows of
-- `open_waits` are never updated, so the ctid stays valid.
DELETE FROM open_waits WHERE ctid = ANY (ARRAY(
    SELECT t.ctid
    FROM unnest($1::integer[], $2::text[], $3::text[], $4::uuid[], $5::bigint[])
         AS r (org, kind, name, run, step),
    LATERAL (SELECT ctid FROM open_waits
             WHERE org = r.org AND kind = r.kind AND name = r.name AND run = r.run AND step = r.step
             LIMIT 1) AS t))
