-- Each is looked up on its own, so that the plan is the same for a table that was empty a moment ago. A task that waits
-- is never updated, so its place does not change.
DELETE FROM ready WHERE ctid = ANY (ARRAY(
    SELECT t.ctid
    FROM unnest($1::integer[], $2::text[], $3::text[], $4::bigint[], $5::uuid[], $6::bigint[])
         AS r (org, name, key, priority, run, step),
    LATERAL (SELECT ctid FROM ready
             WHERE org = r.org AND name = r.name AND key = r.key AND priority = r.priority AND run = r.run
               AND step = r.step
             LIMIT 1) AS t))
