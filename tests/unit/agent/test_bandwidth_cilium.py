"""What is known of Cilium when the API server answers, refuses or is silent; the client is a stand-in."""

from __future__ import annotations

import pytest

from agent.bandwidth.cilium import Cilium, read_cilium
from kubekit.errors import ApiError, KubekitError, UnreachableError
from kubekit.wire import ConfigMap


class StandIn:
    """A client that gives one answer."""

    def __init__(self, answer: ConfigMap | KubekitError) -> None:
        self.answer = answer

    async def get(self, _resource: object, name: str, _type: object, *, namespace: str) -> ConfigMap:
        assert (namespace, name) == ("kube-system", "cilium-config")
        if isinstance(self.answer, KubekitError):
            raise self.answer
        return self.answer


async def ask(answer: ConfigMap | KubekitError) -> Cilium:
    return await read_cilium(StandIn(answer))  # type: ignore[arg-type]


async def test_the_configuration_that_is_there_counts() -> None:
    assert (await ask(ConfigMap(data={"enable-bandwidth-manager": "true"}))).limits
    assert await ask(ApiError(404, "NotFound", "no such thing")) == Cilium()


@pytest.mark.parametrize("status", [401, 403])
async def test_without_the_right_it_is_not_readable(status: int) -> None:
    found = await ask(ApiError(status, "Forbidden", 'configmaps "cilium-config" is forbidden'))
    assert found.unknown == (
        'ConfigMap kube-system/cilium-config is not readable: configmaps "cilium-config" is forbidden'
    )
    assert not found.installed


async def test_other_failures_are_told_as_they_are() -> None:
    assert "500" in (await ask(ApiError(500, "", "etcd is away"))).unknown
    assert "no answer" in (await ask(UnreachableError("no answer"))).unknown
