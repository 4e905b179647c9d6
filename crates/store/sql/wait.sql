SELECT org, run, step, kind FROM waits WHERE hash = $1
