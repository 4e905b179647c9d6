SELECT min(at) FROM timers
