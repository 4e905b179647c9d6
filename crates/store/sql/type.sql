SELECT org, name, runtime, description, enabled, paused_at, paused_by, pause_note, max_leased, max_per_key, rate_limit,
       rate_per_us, rate_is_keyed, created_at, updated_at
FROM types WHERE org = $1 AND name = $2
