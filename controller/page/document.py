"""Builds the page's HTML document from page.html and its style and script files, and the headers of responses.

With a single document, style and script always have its version, and the Content-Security-Policy allows no others, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

SCRIPTS = ("base.js", "matrix.js", "groups.js", "now.js", "app.js")


@cache
def build_document() -> bytes:
    """The whole page as HTML in UTF-8."""
    style, script = _read_style_and_script()
    text = _read_asset("page.html").replace("/*STYLE*/", style).replace("/*SCRIPT*/", script)
    return text.encode()


@cache
def build_csp() -> str:
    """The Content-Security-Policy of the document."""
    style, script = _read_style_and_script()
    return (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; style-src {_csp_source(style)}; script-src {_csp_source(script)}"
    )


def make_headers(csp: str = "default-src 'none'; frame-ancestors 'none'") -> dict[str, str]:
    """Headers of every response of the page; the default Content-Security-Policy is for responses other than the document."""
    return {
        "Content-Security-Policy": csp,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def _read_style_and_script() -> tuple[str, str]:
    return _read_asset("style.css"), "\n".join(_read_asset(name) for name in SCRIPTS)


def _read_asset(name: str) -> str:
    return files("controller.page").joinpath("assets", name).read_text("utf-8")


def _csp_source(text: str) -> str:
    """The source that allows an inline style or script with this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
