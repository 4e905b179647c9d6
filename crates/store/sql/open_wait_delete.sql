DELETE FROM open_waits WHERE org = $1 AND kind = $2 AND name = $3 AND run = $4 AND step = $5
