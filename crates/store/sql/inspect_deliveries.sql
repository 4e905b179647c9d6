SELECT d.org, d.trigger, d.id FROM deliveries d
WHERE NOT EXISTS (SELECT 1 FROM triggers t WHERE t.org = d.org AND t.id = d.trigger)
