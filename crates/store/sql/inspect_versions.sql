SELECT org, workflow, number, hash, definition FROM versions ORDER BY org, workflow, number
