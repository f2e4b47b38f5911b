"""Measurements a user can repeat: `choral bench`."""
