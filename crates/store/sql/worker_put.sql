INSERT INTO workers (org, id, types, runtime, version, slots, first_seen, last_seen)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (org, id) DO UPDATE
SET types = excluded.types, runtime = excluded.runtime, version = excluded.version, slots = excluded.slots,
    first_seen = excluded.first_seen, last_seen = excluded.last_seen
