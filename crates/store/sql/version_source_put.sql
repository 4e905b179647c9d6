UPDATE versions SET definition = $1 WHERE org = $2 AND workflow = $3 AND number = $4
