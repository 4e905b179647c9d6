DELETE FROM payloads WHERE org = $1 AND run = $2
