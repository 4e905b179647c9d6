INSERT INTO workers (org, id, types, runtime, version, slots, first_seen, last_seen)
SELECT * FROM unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::bigint[])
ON CONFLICT (org, id) DO UPDATE
SET types = excluded.types, runtime = excluded.runtime, version = excluded.version, slots = excluded.slots,
    first_seen = excluded.first_seen, last_seen = excluded.last_seen
