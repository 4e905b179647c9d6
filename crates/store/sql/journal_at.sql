SELECT org, run, seq, prev, body FROM journal WHERE pos = $1
