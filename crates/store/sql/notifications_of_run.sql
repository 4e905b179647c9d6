SELECT org, run, number, error FROM notices WHERE org = $1 AND run = $2 ORDER BY number
