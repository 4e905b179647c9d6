SELECT org, run, number, error FROM notices ORDER BY org, run, number LIMIT $1
