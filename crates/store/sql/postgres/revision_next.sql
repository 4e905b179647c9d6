-- Last in the transaction of a change, which it is visible with. Changes wait for each other here.
INSERT INTO settings (name, value) VALUES ('catalogue_revision', '1')
ON CONFLICT (name) DO UPDATE SET value = (settings.value::bigint + 1)::text
