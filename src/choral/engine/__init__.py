"""The inference engine: batches windows of all callers and runs them on one device."""
