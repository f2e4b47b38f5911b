"""A text in a form, as a field or, where it is long, as a file of the same name."""

from __future__ import annotations

from choral.longform.alignment import MAX_ALIGNED_CHARACTERS
from choral.server.api_errors import ApiError
from choral.server.upload import Form
from choral.serving.input_sources import OpenFile


def take_text(form: Form, name: str) -> tuple[str | None, Form]:
    """The text of the file of this name, if there is one, and the form without it."""
    files = [file for field, file in form.files if field == name]
    others = Form(form.fields, tuple(pair for pair in form.files if pair[0] != name))
    if not files:
        return None, others
    if len(files) > 1 or any(field == name for field, _ in form.fields):
        raise ApiError(f"`{name}` was given twice: send it once", param=name, code="duplicate_field")
    return _decoded(files[0], name), others


def _decoded(file: OpenFile, name: str) -> str:
    file.file.seek(0)
    try:
        return file.file.read(4 * MAX_ALIGNED_CHARACTERS + 1).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ApiError(f"`{name}` is not text in UTF-8", param=name, code="invalid_value") from error
