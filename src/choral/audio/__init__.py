"""From a file, bytes, an array or a URL to 16 kHz mono samples, log-mel features and stretches of speech."""
