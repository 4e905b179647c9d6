SELECT org, run, name, key, priority, step FROM ready ORDER BY org, run, step
