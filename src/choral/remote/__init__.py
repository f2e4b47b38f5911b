"""Access to other machines: HTTP requests, downloads, published packages, and samples of speech."""
