SELECT pos, org, run, seq, prev, length(body) FROM journal WHERE pos > $1 ORDER BY pos
