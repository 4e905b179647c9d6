DELETE FROM seats WHERE until <= $1
