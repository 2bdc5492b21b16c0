"""The viewer as a web application: pages of ours, documents and kept frames, behind the guard (`vlmrl.web`), which wants the token.

Nothing can be changed: only GET and HEAD are answered. Pages load scripts, styles and pictures from here alone
(Content-Security-Policy), and texts of the run reach them as JSON, never as HTML.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette  # pyright: ignore[reportMissingImports]
from starlette.requests import Request  # pyright: ignore[reportMissingImports]
from starlette.responses import FileResponse, RedirectResponse, Response  # pyright: ignore[reportMissingImports]
from starlette.routing import Mount, Route  # pyright: ignore[reportMissingImports]
from starlette.staticfiles import StaticFiles  # pyright: ignore[reportMissingImports]

from vlmrl.errors import ConfigError, StorageError
from vlmrl.extras.pages.documents.source import Forbidden
from vlmrl.extras.pages.view.save import STATIC
from vlmrl.extras.pages.view.view import View
from vlmrl.web.guard import App, Guard, Scope

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def cookie_name(token: str) -> str:
    """Cookies do not tell ports apart, so each viewer has a name of its own."""
    return "vlmrl-view-" + hashlib.sha256(token.encode()).hexdigest()[:12]


def has_token(scope: Scope, headers: Mapping[str, str], token: str) -> bool:
    """Whether a request has the token: in its address, as a bearer, or in a cookie."""
    given = [*parse_qs(scope["query_string"].decode("latin-1")).get("token", []), headers.get("authorization", "").removeprefix("Bearer ")]
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(cookie_name(token))
    except CookieError:
        cookie = None
    given += [] if cookie is None else [cookie.value]
    return any(secrets.compare_digest(one.encode(), token.encode()) for one in given)


def make_app(view: View, token: str) -> App:
    """The application, which answers whoever has the token."""

    def page(request: Request) -> Response:
        if "token" in request.query_params:  # out of the address bar, into a cookie that scripts cannot read
            response = RedirectResponse("/", 303)
            response.set_cookie(cookie_name(token), token, httponly=True, samesite="strict")
            return response
        return FileResponse(STATIC / "index.html")

    def document(request: Request) -> Response:
        return _json(view.document(request.path_params["address"]))

    def picture(request: Request) -> Response:
        place = request.path_params
        data, kind = view.picture(place["item"], place["name"], int(place["number"]))
        return Response(data, media_type=kind)

    app = Starlette(
        routes=[
            Route("/", page),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route("/favicon.ico", lambda request: Response(status_code=204)),
            Route("/api/{address:path}", document),
            Route("/media/{item}/{name}/{number:int}.{suffix}", picture),
        ],
        exception_handlers={
            Forbidden: lambda request, error: _json({"error": "outside of the folder"}, 403),
            StorageError: lambda request, error: _json({"error": str(error)}, 404),
            ConfigError: lambda request, error: _json({"error": str(error)}, 400),
        },
    )
    return Guard(
        app,
        allows=lambda scope, headers: has_token(scope, headers, token),
        shows=lambda refusal: ("text/plain; charset=utf-8", f"refused: {refusal.reason}\n".encode()),
        headers=HEADERS,
    )


def _json(value: Any, status: int = 200) -> Response:
    """ASCII, so that no text of a model can be one that JSON in UTF-8 cannot hold."""
    return Response(json.dumps(value, separators=(",", ":")), status, media_type="application/json")
