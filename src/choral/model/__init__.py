"""The Whisper model: its shape, vocabulary, weights, where they come from, and the network itself."""
