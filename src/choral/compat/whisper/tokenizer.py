"""The languages, by code and by name."""

from choral.model.languages import NAMES

LANGUAGES = dict(NAMES)
TO_LANGUAGE_CODE = {name: code for code, name in LANGUAGES.items()}
