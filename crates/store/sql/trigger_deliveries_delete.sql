DELETE FROM deliveries WHERE org = $1 AND trigger = $2
