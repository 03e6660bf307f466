"""Limits the size of ConfigMaps, which the API server refuses above 1 MiB."""

from __future__ import annotations

from collections.abc import Mapping

from kubekit.errors import KubekitError

MAX_CONFIGMAP_BYTES = 2**20 - 2**16
"""Less than the API server allows, because metadata counts too."""


class ConfigMapTooLargeError(KubekitError):
    """A write would make a ConfigMap larger than `MAX_CONFIGMAP_BYTES`."""


def measure_size(data: Mapping[str, str | None]) -> int:
    """Size of a ConfigMap's keys and values, in bytes of UTF-8."""
    return sum(
        len(key.encode("utf-8", "replace")) + len((value or "").encode("utf-8", "replace"))
        for key, value in data.items()
    )


def check_size(name: str, data: Mapping[str, str | None], fix: str) -> None:
    """Check the size of a ConfigMap's ``data``.

    Raises:
        ConfigMapTooLargeError: the size is above `MAX_CONFIGMAP_BYTES`; the message has ``fix``, how to make the object smaller.
    """
    size_bytes = measure_size(data)
    if size_bytes > MAX_CONFIGMAP_BYTES:
        problem = f"ConfigMap {name} would hold {size_bytes} bytes, over {MAX_CONFIGMAP_BYTES}"
        raise ConfigMapTooLargeError(f"{problem}: {fix}")
