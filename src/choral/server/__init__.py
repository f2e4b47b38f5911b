"""The HTTP server: OpenAI's API for audio in front of one engine, and what operators need beside it."""
