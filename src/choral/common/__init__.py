"""Code that is not about speech, for every layer: asyncio helpers, memory, logging, back-off."""
