SELECT r.place, made, fingerprint
FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::text[]) AS r (place, org, scope, key)
JOIN idempotency USING (org, scope, key)
