"""What comes from other machines: downloads, files out of published packages, and samples of speech."""
