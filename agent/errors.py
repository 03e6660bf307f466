"""What can go wrong between the agent and its kernel; psutil's exceptions stop where they are called."""

from __future__ import annotations

from kubekit.errors import KubekitError


class KernelError(KubekitError):
    """The kernel refused a request, or could not be asked.

    Attributes:
        code: errno, or 0.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code
