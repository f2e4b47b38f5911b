"""Measurements of the server: what HTTP costs beside the engine, and whether hours of load leave anything behind."""
