INSERT INTO labels (org, key, value, run)
SELECT * FROM unnest($1::integer[], $2::text[], $3::text[], $4::uuid[])
ON CONFLICT DO NOTHING
