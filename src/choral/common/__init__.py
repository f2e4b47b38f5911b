"""Helpers that know nothing about speech: asyncio, malloc, logging, back-off. Standard library only."""
