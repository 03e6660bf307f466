"""The version of the installed package."""

from __future__ import annotations


def installed_version() -> str:
    """Version of the package; ``unknown`` if it is not installed."""
    # Imported lazily: importlib.metadata is slow to import, and few processes need it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("netaware")
    except PackageNotFoundError:
        return "unknown"
