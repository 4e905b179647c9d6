SELECT max(pos) FROM journal
