-- Epochs are rows here, not a setting.
SELECT max(epoch) FROM nodes
