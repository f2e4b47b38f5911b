"""The HTTP server: OpenAI's audio API, jobs, live audio and a web page in front of one engine."""
