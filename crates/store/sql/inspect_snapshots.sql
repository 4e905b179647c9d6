SELECT org, run, seq, pos, body FROM snapshots ORDER BY org, run
