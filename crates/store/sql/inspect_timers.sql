SELECT org, run, at FROM timers ORDER BY org, run, at
