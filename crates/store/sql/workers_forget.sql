DELETE FROM workers WHERE last_seen < $1
