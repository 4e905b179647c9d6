-- The stored time never decreases.
INSERT INTO settings (name, value) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE settings.value::bigint < excluded.value::bigint
