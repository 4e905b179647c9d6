SELECT org, name, runtime, description, enabled, paused_at, paused_by, pause_note, max_leased, max_per_key, rate_limit,
       rate_per_us, rate_is_keyed, created_at, updated_at
FROM types
WHERE NOT (runtime IS NULL AND description IS NULL AND enabled AND paused_at IS NULL AND max_leased IS NULL
           AND max_per_key IS NULL AND rate_limit IS NULL)
ORDER BY org, name
