SELECT org, run, step, hash, kind FROM waits ORDER BY org, run, step
