-- On Postgres epochs are rows, not a setting.
SELECT max(epoch) FROM nodes
