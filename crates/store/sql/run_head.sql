SELECT seq, head, listed FROM runs WHERE org = $1 AND id = $2
