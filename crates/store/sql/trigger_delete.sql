DELETE FROM triggers WHERE org = $1 AND id = $2
