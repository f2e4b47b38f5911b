"""Speaker diarization: who spoke when.

Segmentation finds speech and up to three speakers in overlapping windows of 10 s; pieces of what each says alone get
an embedding; clustering decides which pieces are of one person; turns are put together from all windows.
"""
