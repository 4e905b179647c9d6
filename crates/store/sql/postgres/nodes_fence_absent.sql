UPDATE nodes SET barred = true WHERE NOT barred AND until < clock_timestamp() AND epoch <> $1
