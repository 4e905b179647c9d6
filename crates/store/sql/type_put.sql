INSERT INTO types (org, name, runtime, description, enabled, paused_at, paused_by, pause_note, max_leased, max_per_key,
                   rate_limit, rate_per_us, rate_is_keyed, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
ON CONFLICT (org, name) DO UPDATE
SET runtime = excluded.runtime, description = excluded.description, enabled = excluded.enabled,
    paused_at = excluded.paused_at, paused_by = excluded.paused_by, pause_note = excluded.pause_note,
    max_leased = excluded.max_leased, max_per_key = excluded.max_per_key, rate_limit = excluded.rate_limit,
    rate_per_us = excluded.rate_per_us, rate_is_keyed = excluded.rate_is_keyed,
    created_at = excluded.created_at, updated_at = excluded.updated_at
