-- Each is looked up on its own, so that the plan is the same for a table that was empty a moment ago. A timer is never
-- updated, so its place does not change.
DELETE FROM timers WHERE ctid = ANY (ARRAY(
    SELECT t.ctid FROM unnest($1::bigint[], $2::integer[], $3::uuid[]) AS r (at, org, run),
    LATERAL (SELECT ctid FROM timers WHERE at = r.at AND org = r.org AND run = r.run LIMIT 1) AS t))
