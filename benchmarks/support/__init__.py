"""Helpers that the benchmark scripts share with the tests."""
