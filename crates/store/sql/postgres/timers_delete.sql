-- A LATERAL lookup per row, so that the plan uses the index even if it was made for an empty table. Rows of `timers`
-- are never updated, so the ctid stays valid.
DELETE FROM timers WHERE ctid = ANY (ARRAY(
    SELECT t.ctid FROM unnest($1::bigint[], $2::integer[], $3::uuid[]) AS r (at, org, run),
    LATERAL (SELECT ctid FROM timers WHERE at = r.at AND org = r.org AND run = r.run LIMIT 1) AS t))
