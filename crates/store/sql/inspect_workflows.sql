-- Deleted ones too: their runs keep referring to them.
SELECT org, id, version, hash FROM workflows ORDER BY org, id
