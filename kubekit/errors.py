"""Errors that kubekit raises."""

from __future__ import annotations

from http import HTTPStatus


class KubekitError(Exception):
    """Base of expected errors, also those of other packages; other exceptions are defects.

    Attributes:
        status: see `ApiError`; None for other errors.
        retry_after_s: seconds after which the server allows a retry; None except for an `ApiError` that says so.
    """

    status: int | None = None
    retry_after_s: float | None = None

    @property
    def is_not_found(self) -> bool:
        """Whether the object or the resource does not exist."""
        return self.status == HTTPStatus.NOT_FOUND

    @property
    def kind(self) -> str:
        """The HTTP status, or the class of an error without one; a state for `kubekit.logs.Log.log_change`."""
        return str(self.status or type(self).__name__)

    @property
    def is_expired(self) -> bool:
        """Whether the resourceVersion is too old, so that a new list is needed."""
        return self.status == HTTPStatus.GONE


class ConfigError(KubekitError):
    """A setting is wrong; the message names the field and the fix.

    Args:
        field: the flag, environment variable or dotted path in a file, as users write it.
        problem: the fault; completes "FIELD: ".
        fix: the valid values or the remedy; may be empty.
    """

    def __init__(self, field: str, problem: str, fix: str = "") -> None:
        super().__init__(f"{field}: {problem}" + (f" ({fix})" if fix else ""))
        self.field, self.problem, self.fix = field, problem, fix


class QuantityError(KubekitError, ValueError):
    """A text is not a Kubernetes quantity, or out of range."""


class SelectorError(KubekitError, ValueError):
    """A text or a LabelSelector object is not a valid label selector."""


class MalformedObjectError(KubekitError):
    """The API server sent an object that cannot be decoded to the requested type."""


class UnreachableError(KubekitError):
    """No complete response from the API server: connection refused or reset, timeout, or TLS failure."""


class CredentialError(UnreachableError):
    """The log-in plugin returned no credential; a retry may succeed."""


class SilentWatchError(UnreachableError):
    """A watch received neither an event nor a bookmark for ``max_silence_s`` of `kubekit.client.Client.watch`."""


class NotLeaderError(KubekitError):
    """A write was refused because this process is not, or no longer, the leader."""


class ApiError(KubekitError):
    """The API server responded with an error.

    Attributes:
        status: the HTTP status; below 500, the code of the Status object if it has one.
        reason: the machine-readable reason of the Status object, for example ``NotFound``; may be empty.
        message: the text of the Status object, or else the start of the response.
        retry_after_s: seconds of the Retry-After header, or else of the Status details, at most 60; None if both are missing or 0.
        causes: ``reason`` of each cause in the Status details, for example ``DisruptionBudget``.
    """

    status: int

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
    def is_already_exists(self) -> bool:
        """Whether a create failed because the object exists already."""
        return self.status == HTTPStatus.CONFLICT and self.reason == "AlreadyExists"

    @property
    def is_conflict(self) -> bool:
        """Whether another writer changed or deleted the object since it was read, or owns an applied field."""
        return self.status == HTTPStatus.CONFLICT and self.reason != "AlreadyExists"

    @property
    def is_forbidden(self) -> bool:
        """Whether RBAC or an admission policy refused the request."""
        return self.status == HTTPStatus.FORBIDDEN

    @property
    def is_throttled(self) -> bool:
        """Whether the server was too busy for the request."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS and not self.is_disruption_budget

    @property
    def is_disruption_budget(self) -> bool:
        """Whether a PodDisruptionBudget allows no eviction; the status is the same as for throttling."""
        return self.status == HTTPStatus.TOO_MANY_REQUESTS and "DisruptionBudget" in self.causes
