UPDATE nodes SET barred = true WHERE name = $1 AND name <> '' AND NOT barred
