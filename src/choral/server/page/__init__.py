"""The web page at `/`: static files, and the engine's counters for it."""
