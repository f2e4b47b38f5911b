"""The extensions of audio and video files that are found in folders; files of any name can be given one by one."""

AUDIO_EXTENSIONS = frozenset(
    (
        ".3ga", ".aac", ".ac3", ".aif", ".aifc", ".aiff", ".amr", ".ape", ".au", ".caf", ".dts", ".flac",
        ".g722", ".gsm", ".m4a", ".m4b", ".mka", ".mp2", ".mp3", ".mpga", ".oga", ".ogg", ".opus", ".ra",
        ".snd", ".spx", ".tta", ".voc", ".wav", ".wave", ".weba", ".wma", ".wv",
    )
)  # fmt: skip
VIDEO_EXTENSIONS = frozenset(
    (
        ".3gp", ".asf", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts",
        ".ogv", ".ts", ".vob", ".webm", ".wmv",
    )
)  # fmt: skip
MEDIA_EXTENSIONS = AUDIO_EXTENSIONS | VIDEO_EXTENSIONS
