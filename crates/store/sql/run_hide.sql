UPDATE runs SET deleted_at = $1 WHERE org = $2 AND id = $3
