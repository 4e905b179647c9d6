-- One seek, however many tasks the lane before has.
SELECT org, name, key FROM ready WHERE (org, name, key) > ($1, $2, $3) ORDER BY org, name, key LIMIT 1
