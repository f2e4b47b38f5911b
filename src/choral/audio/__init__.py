"""Files, bytes, arrays and URLs to 16 kHz mono samples, log-mel features and speech spans."""
