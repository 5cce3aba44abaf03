"""Inputs and options of a request: JSON, the body itself as one file, or a form.

An input that is a file comes as its bytes, in JSON as base64; a name of a file is never opened.
"""

import asyncio
import base64
import binascii
import io
import zipfile
from collections.abc import Awaitable
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import soundfile
from PIL import Image
from starlette.datastructures import UploadFile
from starlette.requests import Request

from regard.data.images.files import FORMATS
from regard.errors import UserError
from regard.serve.config import LimitsConfig
from regard.serve.replies import RequestError

T = TypeVar("T")

_BODIES = ("image/", "audio/", "text/csv", "text/plain")
"""Types of a body that is one input, besides application/octet-stream."""
_ARRAYS = ("points", "tracks", "vector")
"""Kinds of inputs that may be numbers in JSON."""
_FORM = "multipart/form-data"


class Query(msgspec.Struct):
    """A request for answers; options: settings of answers by name."""

    inputs: list[Any]
    run: str | None = None
    on_bad: Literal["error", "skip"] = "error"
    deadline: Annotated[float, msgspec.Meta(gt=0)] | None = None
    look: bool = False
    stream: bool = False
    options: dict[str, Any] = {}
    is_text: bool = False
    """True if values are from a query or a form, as texts."""


_FIELDS = ("inputs", "run", "on_bad", "deadline", "look", "stream")


async def read_query(request: Request) -> Query:
    """Return the inputs and options of a request. Raises: RequestError if it cannot be read."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    values: dict[str, Any] = dict(request.query_params)
    if kind == "application/json" and values:
        text = f"with a JSON body, options are in it, not in the query: {', '.join(values)}"
        raise RequestError(422, text, at=next(iter(values))[:100])
    if kind == "application/json":
        values = decode_object(await request.body())
    elif kind == _FORM:
        await _read_form(request, values)
    elif kind == "application/octet-stream" or kind.startswith(_BODIES):
        values["inputs"] = [await request.body()]
    else:
        expected = f"application/json, {_FORM} or the type of a file"
        raise RequestError(415, f"the content type must be {expected}, got {kind or 'none'}")
    if "text/event-stream" in request.headers.get("accept", ""):
        values["stream"] = True
    is_text = kind != "application/json"
    known: dict[str, Any] = {"is_text": is_text, "options": {}}
    for name, value in values.items():
        if name in _FIELDS:
            known[name] = value
        else:
            known["options"][name] = value
    return to_struct(known, Query, strict=not is_text)


async def in_time(reading: Awaitable[T], seconds: float) -> T:
    """Return what is read from a body. Raises: RequestError 408 if the body is late."""
    try:
        async with asyncio.timeout(seconds):
            return await reading
    except TimeoutError as error:
        headers = {"Connection": "close"}
        raise RequestError(408, "the body did not arrive in time", headers=headers) from error


async def _read_form(request: Request, values: dict[str, Any]) -> None:
    """Add the fields of a form to values: files and texts named inputs, and options."""
    async with request.form(max_files=1_000, max_fields=1_000) as form:
        inputs = []
        for name, value in form.multi_items():
            if name == "inputs":
                inputs.append(await value.read() if isinstance(value, UploadFile) else value)
            elif isinstance(value, UploadFile):
                raise RequestError(422, "a file is an input: its field is inputs", at=name[:100])
            else:
                values[name] = value
        values["inputs"] = inputs


def decode_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body. Raises: RequestError if it is none."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RequestError(422, f"expected a JSON object, got {type(value).__name__}", at="$")
    return value


def to_struct(values: dict[str, Any], kind: type[Any], *, strict: bool = True) -> Any:
    """Return values as a struct. Raises: RequestError with the place of one of the wrong type."""
    try:
        return msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as error:
        text, _, place = str(error).partition(" - at ")
        raise RequestError(422, text, at=place.strip("`").removeprefix("$.")) from error


def read_inputs(
    values: list[Any], kind: str, limits: LimitsConfig, *, reads_tokens: bool = False
) -> list[Any]:
    """Return the inputs of a request as `TrainedRun.predict` takes them, or their errors.

    kind: of the input: text, image, sound, points, tracks or vector.
    Raises: RequestError for no inputs, or too many.
    """
    if not 0 < len(values) <= limits.inputs:
        raise RequestError(
            422, f"expected 1 to {limits.inputs} inputs, got {len(values)}", at="inputs"
        )
    inputs = []
    for number, value in enumerate(values, start=1):
        try:
            if kind == "text":
                inputs.append(_read_text(value, limits, reads_tokens=reads_tokens))
            elif isinstance(value, list) and kind in _ARRAYS:
                inputs.append(value)
            elif kind == "vector":
                inputs.append(value.decode() if isinstance(value, bytes) else value)
            else:
                inputs.append(_read_file(value, kind, limits))
        except ValueError as error:
            inputs.append(UserError(f"input {number}: {error}"))
    return inputs


def _read_text(value: Any, limits: LimitsConfig, *, reads_tokens: bool) -> Any:
    text = value.decode() if isinstance(value, bytes) else value
    pieces = text if reads_tokens and isinstance(text, list) else [text]
    for piece in pieces:
        if not isinstance(piece, str):
            expected = "a text or a list of tokens" if reads_tokens else "a text"
            raise UserError(f"expected {expected}, got {type(piece).__name__}")
    size = sum(map(len, pieces))
    if size > limits.characters:
        raise ValueError(f"at most {limits.characters:,} characters are read, got {size:,}")
    return text


def _read_file(value: Any, kind: str, limits: LimitsConfig) -> bytes:
    """Return the content of a file, after a look at the sizes that its header claims."""
    if isinstance(value, str):
        encoded = value.partition(",")[2] if value.startswith("data:") else value
        try:
            content = base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise ValueError(f"expected the content of a file as base64: {error}") from error
    elif isinstance(value, bytes):
        content = value
    else:
        raise UserError(f"expected a file as base64, got {type(value).__name__}")
    _check_size(content, kind, limits)
    return content


def _check_size(content: bytes, kind: str, limits: LimitsConfig) -> None:
    """Raise ValueError for a file whose header claims more than the limits.

    The recipe names what is wrong with one that cannot be read.
    """
    size, most, text = 0.0, 0.0, ""
    try:
        if kind == "image":
            with Image.open(io.BytesIO(content), formats=FORMATS) as image:
                width, height = image.size
            size, most = width * height, limits.pixels
            text = f"at most {most:,} pixels are read, got {width:,} x {height:,}"
        elif kind == "sound":
            info = soundfile.info(io.BytesIO(content))
            size, most = info.frames / info.samplerate, limits.sound
            text = f"at most {most:g} seconds are read, got {size:.1f}"
        elif content.startswith(b"PK"):  # the arrays of an .npz file
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                size, most = sum(one.file_size for one in archive.infolist()), limits.body
            text = f"at most {most:,} bytes are unpacked, got {size:,}"
    except Image.DecompressionBombError as error:
        raise ValueError(str(error)) from error
    except (OSError, SyntaxError, ValueError, soundfile.LibsndfileError, zipfile.BadZipFile):
        return
    if size > most:
        raise ValueError(text)
