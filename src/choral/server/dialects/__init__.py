"""The protocols of other speech servers: adapters over the same requests, limits and engine as OpenAI's endpoints."""
