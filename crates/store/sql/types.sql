-- Starts at the prefix or the cursor, whichever is later; the caller stops at the first name without the prefix.
SELECT org, name, runtime, description, enabled, paused_at, paused_by, pause_note, max_leased, max_per_key, rate_limit,
       rate_per_us, rate_is_keyed, created_at, updated_at
FROM types WHERE org = $1 AND name >= $2 AND (name <> $3 OR $3 IS NULL) ORDER BY name LIMIT $4
