"""The command line: each command is a module of its name; `main` imports only the one that runs."""
