-- It was taken up, which its row has not said so far.
UPDATE runs SET head = $1, seq = $2, parked = 0, waiting = 0 WHERE org = $3 AND id = $4
