DELETE FROM seats
WHERE org = $1 AND name = $2 AND of = $3 AND key = $4 AND number = $5 AND run = $6 AND step = $7
