"""Modules that the benchmark scripts share with each other and with the tests."""
