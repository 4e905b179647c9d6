SELECT org, run, key, value FROM labels ORDER BY org, run, key, value
