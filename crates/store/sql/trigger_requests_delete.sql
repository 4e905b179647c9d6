DELETE FROM delivery_requests WHERE org = $1 AND trigger = $2
