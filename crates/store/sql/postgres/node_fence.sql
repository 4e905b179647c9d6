INSERT INTO nodes (epoch, fenced) VALUES ($1, true) ON CONFLICT (epoch) DO UPDATE SET fenced = true
