SELECT epoch, GREATEST(0, extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint
FROM nodes WHERE NOT barred ORDER BY epoch
