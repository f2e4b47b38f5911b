"""From recordings of any length to transcripts: which windows, in what order, what to retry, where words lie."""
