-- Records of deleted runs are empty.
SELECT body FROM journal WHERE length(body) > 0 ORDER BY pos DESC LIMIT 1
