SELECT org, id, types, runtime, version, slots, first_seen, last_seen FROM workers ORDER BY org, id
