-- The last statement of a transaction that changes a cached row, so that the revision becomes visible with the
-- change. The row lock serializes such transactions.
INSERT INTO settings (name, value) VALUES ('catalogue_revision', '1')
ON CONFLICT (name) DO UPDATE SET value = (settings.value::bigint + 1)::text
