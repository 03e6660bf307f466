"""Errors of the lab, which the command line turns into one line and an exit code."""

from __future__ import annotations

from kubekit.errors import KubekitError


class LabError(KubekitError):
    """Base of the lab's own errors; the command line prints it and exits 1."""


class BuildError(LabError):
    """The control plane's binaries are neither found nor buildable."""


class BootError(LabError):
    """A program of the lab did not start, or ended unexpectedly."""


class UnsupportedError(LabError):
    """The machine lacks something the lab needs; the text says what is missing and what still works."""


class InsufficientCapacityError(UnsupportedError):
    """The machine has what the lab needs, but others use it at the moment; the text says what and how much."""


class WanError(LabError):
    """The emulated wide-area network refused a request."""
