DELETE FROM grants WHERE org = $1 AND run = $2
