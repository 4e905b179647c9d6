-- One lowering of a definition, or without a number the latest.
SELECT lowering, source, plan FROM definitions
WHERE org = $1 AND hash = $2 AND (CAST($3 AS bigint) IS NULL OR lowering = $3)
ORDER BY lowering DESC LIMIT 1
