"""The version of the installed package."""

from __future__ import annotations

DISTRIBUTION = "netaware"


def installed_version() -> str:
    """Version of the package; ``unknown`` where it runs from a folder that was never installed."""
    # Imported here, since every process imports this module and few ask.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "unknown"
