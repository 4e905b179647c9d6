-- Runs that go on with another version of their workflow.
UPDATE runs SET version = r.version, hash = r.hash, lowering = r.lowering
FROM unnest($1::integer[], $2::uuid[], $3::bigint[], $4::bytea[], $5::bigint[]) AS r (org, id, version, hash, lowering)
WHERE runs.org = r.org AND runs.id = r.id
