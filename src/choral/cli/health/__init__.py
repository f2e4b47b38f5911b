"""What `choral doctor` looks at."""
