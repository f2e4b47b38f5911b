"""The page at `/`: plain files, and the numbers that it shows of the engine."""
