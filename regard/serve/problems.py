"""Errors of requests as RFC 9457 describes them: JSON with type, title, status and detail."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"


class RequestError(Exception):
    """Error that a request is answered with.

    at: place in the request, such as inputs[3].
    """

    def __init__(
        self, status: int, detail: str, *, at: str = "", headers: Mapping[str, str] | None = None
    ):
        super().__init__(detail)
        self.status, self.detail, self.at, self.headers = status, detail, at, headers

    def message(self, inputs: str) -> str:
        """Return the detail with its place, for requests whose inputs have another name."""
        at = self.at.replace("inputs", inputs)
        return f"{at}: {self.detail}" if at and not self.detail.startswith(at) else self.detail

    def to_json(self) -> dict[str, Any]:
        title = HTTPStatus(self.status).phrase
        body = {"type": "about:blank", "title": title, "status": self.status, "detail": self.detail}
        return body | ({"at": self.at} if self.at else {})

    def response(self) -> Response:
        body = msgspec.json.encode(self.to_json())
        return Response(body, self.status, self.headers, MEDIA_TYPE)


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a response with a value as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")
