SELECT pos, org, run, seq, body FROM journal ORDER BY pos
