SELECT seq, head FROM runs WHERE org = $1 AND id = $2
