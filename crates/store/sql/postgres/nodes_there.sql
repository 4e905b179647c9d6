SELECT epoch FROM nodes WHERE NOT barred ORDER BY epoch
