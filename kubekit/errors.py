"""Base classes of errors.

Third-party exceptions (aiohttp, msgspec, ssl) stop at kubekit's border, so that callers need to know this tree only.
"""

from __future__ import annotations


class KubekitError(Exception):
    """Base of every error that kubekit raises on purpose.

    Attributes:
        retry_after_s: seconds that the server asks us to wait, if it said so.
    """

    retry_after_s: float | None = None


class ConfigError(KubekitError):
    """Something a user set is wrong; the text names the field and the fix.

    Args:
        field: the flag, environment variable or dotted path in a file, as the user wrote it.
        problem: what is wrong, in half a sentence.
        fix: what to write instead; may be empty when the problem says it.
    """

    def __init__(self, field: str, problem: str, fix: str = "") -> None:
        super().__init__(f"{field}: {problem}" + (f" ({fix})" if fix else ""))
        self.field, self.problem, self.fix = field, problem, fix


class QuantityError(KubekitError, ValueError):
    """A text is no Kubernetes quantity."""


class SelectorError(KubekitError, ValueError):
    """A text is no Kubernetes label selector."""


class MalformedObjectError(KubekitError):
    """The API server sent an object that does not have the shape we read."""


class UnreachableError(KubekitError):
    """No answer from the API server: refused, reset, timed out, or TLS did not agree."""


class CredentialError(UnreachableError):
    """The plugin that logs in gave no credential: the next try may."""


class SilentWatchError(UnreachableError):
    """Neither an event nor a bookmark came for longer than a healthy server is silent."""


class NotLeaderError(KubekitError):
    """A write was refused because this process is not, or no longer, the leader."""


class ApiError(KubekitError):
    """The API server answered with an error.

    Attributes:
        status: the HTTP status.
        reason: the machine-readable reason of the Status object, for example ``NotFound``; may be empty.
        message: its text.
        causes: ``reason`` of each cause in the Status details, for example ``DisruptionBudget``.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        retry_after_s: float | None = None,
        causes: tuple[str, ...] = (),
    ) -> None:
        super().__init__(f"{status} {reason}: {message}" if reason else f"{status}: {message}")
        self.status, self.reason, self.message = status, reason, message
        self.retry_after_s, self.causes = retry_after_s, causes

    @property
    def not_found(self) -> bool:
        """The object or the resource does not exist."""
        return self.status == 404

    @property
    def already_exists(self) -> bool:
        """A create found the name taken."""
        return self.status == 409 and self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Another writer changed the object since we read it, or owns the field that we apply."""
        return self.status == 409 and self.reason != "AlreadyExists"

    @property
    def expired(self) -> bool:
        """The resourceVersion is too old: list again."""
        return self.status == 410

    @property
    def forbidden(self) -> bool:
        """RBAC or an admission policy refused."""
        return self.status == 403

    @property
    def throttled(self) -> bool:
        """The server had no room for the request and did nothing; a disruption budget's refusal has the same status."""
        return self.status == 429 and "DisruptionBudget" not in self.causes

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status in {408, 429, 500, 502, 503, 504}
