UPDATE triggers SET cursor = $1, next_at = $2 WHERE org = $3 AND id = $4 AND revision = $5
