SELECT min(next_at) FROM triggers WHERE next_at IS NOT NULL
