"""The languages Whisper was trained on, in the order of their tokens."""

from __future__ import annotations

import difflib
import re

from choral.errors import UsageError
from choral.options import MAX_NAME_CHARACTERS, TranscribeOptions

NAMES = {
    "en": "english", "zh": "chinese", "de": "german", "es": "spanish", "ru": "russian", "ko": "korean",
    "fr": "french", "ja": "japanese", "pt": "portuguese", "tr": "turkish", "pl": "polish", "ca": "catalan",
    "nl": "dutch", "ar": "arabic", "sv": "swedish", "it": "italian", "id": "indonesian", "hi": "hindi",
    "fi": "finnish", "vi": "vietnamese", "he": "hebrew", "uk": "ukrainian", "el": "greek", "ms": "malay",
    "cs": "czech", "ro": "romanian", "da": "danish", "hu": "hungarian", "ta": "tamil", "no": "norwegian",
    "th": "thai", "ur": "urdu", "hr": "croatian", "bg": "bulgarian", "lt": "lithuanian", "la": "latin",
    "mi": "maori", "ml": "malayalam", "cy": "welsh", "sk": "slovak", "te": "telugu", "fa": "persian",
    "lv": "latvian", "bn": "bengali", "sr": "serbian", "az": "azerbaijani", "sl": "slovenian",
    "kn": "kannada", "et": "estonian", "mk": "macedonian", "br": "breton", "eu": "basque", "is": "icelandic",
    "hy": "armenian", "ne": "nepali", "mn": "mongolian", "bs": "bosnian", "kk": "kazakh", "sq": "albanian",
    "sw": "swahili", "gl": "galician", "mr": "marathi", "pa": "punjabi", "si": "sinhala", "km": "khmer",
    "sn": "shona", "yo": "yoruba", "so": "somali", "af": "afrikaans", "oc": "occitan", "ka": "georgian",
    "be": "belarusian", "tg": "tajik", "sd": "sindhi", "gu": "gujarati", "am": "amharic", "yi": "yiddish",
    "lo": "lao", "uz": "uzbek", "fo": "faroese", "ht": "haitian creole", "ps": "pashto", "tk": "turkmen",
    "nn": "nynorsk", "mt": "maltese", "sa": "sanskrit", "lb": "luxembourgish", "my": "myanmar",
    "bo": "tibetan", "tl": "tagalog", "mg": "malagasy", "as": "assamese", "tt": "tatar", "haw": "hawaiian",
    "ln": "lingala", "ha": "hausa", "ba": "bashkir", "jw": "javanese", "su": "sundanese", "yue": "cantonese",
}  # fmt: skip

# Other names and codes of the same languages.
_ALIASES = {
    "burmese": "my", "castilian": "es", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb", "mandarin": "zh",
    "moldavian": "ro", "moldovan": "ro", "panjabi": "pa", "pushto": "ps", "sinhalese": "si", "valencian": "ca",
    "cmn": "zh", "fil": "tl", "iw": "he", "jv": "jw", "nb": "no",
}  # fmt: skip

CODES = tuple(NAMES)
_LOCALE = re.compile(r"([a-z]{2,3})(?:[-_][a-z0-9]{2,8})+")  # BCP 47: en-US, zh-Hant-TW, or en_US
_CODE_OF_NAME = {name: code for code, name in NAMES.items()} | _ALIASES


def check_languages(options: TranscribeOptions) -> None:
    """`UsageError` if an option names an unknown language."""
    for name in (options.language, *options.languages):
        if name is not None:
            to_code(name)


def to_code(name_or_code: str) -> str:
    """The code of a language given by code, locale or English name, in any case; `UsageError` if unknown."""
    name = name_or_code.strip().lower()
    if name in NAMES:
        return name
    if name in _CODE_OF_NAME:
        return _CODE_OF_NAME[name]
    if found := _LOCALE.fullmatch(name):
        return to_code(found[1])
    if len(name) > MAX_NAME_CHARACTERS:
        raise UsageError(
            f"unknown language of {len(name):,} characters; give a code such as en, or a name such as english"
        )
    close = difflib.get_close_matches(name, [*_CODE_OF_NAME, *NAMES], n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else "give a code such as en, or a name such as english"
    raise UsageError(f"unknown language {name_or_code!r}; {hint}")
