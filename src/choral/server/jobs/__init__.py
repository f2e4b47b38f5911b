"""Jobs over HTTP: one interface, kept in SQLite by this process or in Redis for workers."""
