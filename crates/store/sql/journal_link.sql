SELECT org, run, seq, prev FROM journal WHERE pos = $1
