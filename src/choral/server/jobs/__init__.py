"""Jobs over HTTP, stored in SQLite and run by this process, or sent to workers over Redis."""
