DELETE FROM inbox WHERE answer IS NOT NULL AND written_at < $1
