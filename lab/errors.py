"""Errors of the lab, which the command line turns into one line and an exit code."""

from __future__ import annotations

from kubekit.errors import KubekitError


class LabError(KubekitError):
    """Base of the lab's own errors; the command line prints it and exits 1."""


class BuildError(LabError):
    """Programs cannot be built, or Go cannot be installed."""


class BootError(LabError):
    """A program of the lab did not start, or ended unexpectedly."""


class UnsupportedError(LabError):
    """The machine lacks something that the lab needs; the message says what is missing and what works without it."""


class InsufficientCapacityError(UnsupportedError):
    """Other programs currently use too much of what the lab needs; the message says how much is missing."""


class WanError(LabError):
    """The emulated wide-area network refused a request."""
