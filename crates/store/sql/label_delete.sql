DELETE FROM labels WHERE org = $1 AND key = $2 AND value = $3 AND run = $4
