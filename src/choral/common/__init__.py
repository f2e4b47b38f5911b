"""Helpers that know nothing about speech: asyncio, malloc, logging, back-off, sizes. Standard library only."""
