"""Requests in processes of their own, served by one engine."""
