SELECT org, workflow, number, hash FROM versions ORDER BY org, workflow, number
