SELECT source, plan FROM definitions WHERE org = $1 AND hash = $2
