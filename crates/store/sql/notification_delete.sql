DELETE FROM notices WHERE org = $1 AND run = $2 AND number = $3
