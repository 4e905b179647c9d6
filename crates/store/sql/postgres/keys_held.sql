SELECT r.place, i.made, i.fingerprint
FROM unnest($1::bigint[], $2::integer[], $3::text[], $4::text[]) AS r (place, org, scope, key),
LATERAL (SELECT made, fingerprint FROM idempotency WHERE org = r.org AND scope = r.scope AND key = r.key LIMIT 1) AS i
