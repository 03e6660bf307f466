"""Builds the page's HTML document from its style and script files.

A single document needs one request, leaves no stale files in caches after an upgrade, and allows a Content-Security-Policy with the
hashes of its script and style and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files

SCRIPTS = ("base.js", "matrix.js", "groups.js", "now.js", "app.js")


@lru_cache(maxsize=1)
def document() -> bytes:
    """The whole page, UTF-8."""
    style, script = _read_style_and_script()
    text = _read("page.html").replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    return text.encode()


@lru_cache(maxsize=1)
def security_policy() -> str:
    """Value of Content-Security-Policy for `document`."""
    style, script = _read_style_and_script()
    return (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; style-src {_hash(style)}; script-src {_hash(script)}"
    )


def security_headers(policy: str = "default-src 'none'; frame-ancestors 'none'") -> dict[str, str]:
    """Headers of every response; the default ``policy`` is for responses that are not documents."""
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def _read_style_and_script() -> tuple[str, str]:
    return _read("style.css"), "\n".join(_read(name) for name in SCRIPTS)


def _read(name: str) -> str:
    return files("controller.page").joinpath("assets", name).read_text("utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
