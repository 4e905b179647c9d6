SELECT org, run, number, error FROM notices
WHERE (org, run, number) > ($1, $2, $3)
ORDER BY org, run, number LIMIT $4
