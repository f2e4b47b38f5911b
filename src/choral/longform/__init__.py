"""Long-form transcription: which windows are decoded, in what order, what is retried, and where words lie."""
