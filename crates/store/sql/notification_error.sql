UPDATE notices SET error = $1 WHERE org = $2 AND run = $3 AND number = $4
