-- Deleted ones count: an id is never given twice.
SELECT 1 FROM workflows WHERE org = $1 AND id = $2
