SELECT org, run, step, kind, name, deadline FROM open_waits ORDER BY org, run, step
