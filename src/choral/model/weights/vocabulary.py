"""Reads the vocabulary that comes with a model, as the bytes of each token in the order of token ids.

Hugging Face and CTranslate2 write each byte of a token as one printable character: bytes that are printable in Latin-1
as themselves, the others as the characters from U+0100 on. Special tokens are written by name.
"""

from __future__ import annotations

from pathlib import Path

from choral.model.weights.mapped_file import corrupt, read_json, read_json_object

Vocabulary = tuple[bytes, ...]

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF_CHARACTER = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(256 + index): byte for index, byte in enumerate(_OTHERS)
}
_CHARACTER_OF_BYTE = {byte: character for character, byte in _BYTE_OF_CHARACTER.items()}


def to_characters(token: bytes) -> str:
    """A text token as these files write it, one character for each byte."""
    return "".join(_CHARACTER_OF_BYTE[byte] for byte in token)


def of_hugging_face(folder: Path) -> Vocabulary | None:
    """From vocab.json and added_tokens.json, or tokenizer.json; None where the folder has neither."""
    if (folder / "vocab.json").is_file():
        source = folder / "vocab.json"
        id_of_token = read_json_object(source)
        if (folder / "added_tokens.json").is_file():
            id_of_token |= read_json_object(folder / "added_tokens.json")
        return _in_id_order(id_of_token, source)
    if (folder / "tokenizer.json").is_file():
        return _of_tokenizer_json(folder / "tokenizer.json")
    return None


def of_ctranslate2(folder: Path) -> Vocabulary | None:
    """From vocabulary.json or vocabulary.txt; None where the folder has neither."""
    source = folder / "vocabulary.json"
    if source.is_file():
        tokens = read_json(source)
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise corrupt(source, "it is not a list of tokens")
        return tuple(_to_bytes(token) for token in tokens)
    source = folder / "vocabulary.txt"
    if source.is_file():
        try:
            lines = source.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise corrupt(source, "it is not text") from error
        return tuple(_to_bytes(line) for line in (lines[:-1] if lines[-1] == "" else lines))
    return None


def _of_tokenizer_json(source: Path) -> Vocabulary:
    tokenizer = read_json_object(source)
    model, added = tokenizer.get("model"), tokenizer.get("added_tokens", [])
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict) or not isinstance(added, list):
        raise corrupt(source, "it has no vocabulary")
    id_of_token = dict(model["vocab"])
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise corrupt(source, "one of its added tokens has no text")
        id_of_token[token["content"]] = token.get("id")
    return _in_id_order(id_of_token, source)


def _in_id_order(id_of_token: dict[str, object], source: Path) -> Vocabulary:
    token_of_id = {token_id: token for token, token_id in id_of_token.items() if type(token_id) is int}
    if len(token_of_id) != len(id_of_token) or any(id_ not in token_of_id for id_ in range(len(token_of_id))):
        raise corrupt(source, "its token ids are not the numbers from 0 up, each once")
    return tuple(_to_bytes(token_of_id[id_]) for id_ in range(len(token_of_id)))


def _to_bytes(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHARACTER[character] for character in token)
    except KeyError:  # a special token that a fine-tune added in plain text
        return token.encode("utf-8", "surrogatepass")
