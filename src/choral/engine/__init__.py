"""The one place that owns the device: windows go in, tokens, scores and attention come out."""
