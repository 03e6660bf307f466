"""The agent counts bytes between pods on two nodes by connection tracking, behind address translation like kube-proxy's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.debian import find_or_unpack_packages
from lab.errors import UnsupportedError
from tests.integration.agent.limit_measurements import PORT, finish_traffic, running_generators, start_traffic
from tests.integration.agent.pods_on_node import NodePod, node_pod, run

COUNTING = Path(__file__).with_name("counting_in_namespace.py")
SERVICE = "10.96.0.1"
ETHERNET_BYTES = 14

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces"),
    pytest.mark.timeout(240),
]


@contextmanager
def node(*rules: str, accounting: bool = True) -> Iterator[str]:
    """Create a node: a namespace that forwards, tracks connections, and translates addresses by ``rules``."""
    try:
        packages = find_or_unpack_packages("node", ("runc", "nftables"))
    except UnsupportedError as error:
        pytest.skip(str(error))
    name = f"nanode-{uuid.uuid4().hex[:6]}"
    run(f"ip netns add {name}")
    try:
        run(f"ip -n {name} link set lo up")
        for setting in ("net.ipv4.ip_forward=1", f"net.netfilter.nf_conntrack_acct={int(accounting)}"):
            run(f"ip netns exec {name} sysctl -qw {setting}")
        # A rule that names a connection's state turns tracking on, whether or not anything is translated.
        table = "\n".join(
            (
                "table ip proxy {",
                "chain pre { type nat hook prerouting priority -100;",
                *rules,
                "}",
                "chain passing { type filter hook forward priority 0;",
                "ct state invalid drop",
                "}",
                "}\n",
            )
        )
        done = subprocess.run(
            ["ip", "netns", "exec", name, str(packages.find_program("nft")), "-f", "-"],
            input=table,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **packages.environment},
        )
        assert done.returncode == 0, done.stderr
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def connect_nodes(one: str, other: str, routes: Mapping[str, str]) -> None:
    """Connect two nodes; ``routes`` has the peer's pod subnet by node."""
    run(f"ip link add wire netns {one} type veth peer name wire netns {other}")
    for number, name in enumerate((one, other), 1):
        run(f"ip -n {name} addr add 10.250.0.{number}/30 dev wire")
        run(f"ip -n {name} link set wire up")
    run(f"ip -n {one} route add {routes[one]} via 10.250.0.2")
    run(f"ip -n {other} route add {routes[other]} via 10.250.0.1")


@contextmanager
def running_collector(node_name: str, pods: Mapping[str, str]) -> Iterator[Callable[[], dict[str, Any]]]:
    """Run the agent's collector on a node with its container's capability; each call of the result is a round, the first starts counting."""
    only = [f"--{which}=-all,+net_admin" for which in ("inh-caps", "bounding-set")]
    argv = ["ip", "netns", "exec", node_name, "setpriv", "--no-new-privs", *only]
    argv += [sys.executable, str(COUNTING), json.dumps(pods)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        requests, answers = program.stdin, program.stdout

        def read() -> dict[str, Any]:
            print(file=requests, flush=True)
            return dict(json.loads(answers.readline()))

        read()
        yield read
        requests.close()


def read_device_bytes(pod: NodePod) -> tuple[int, int]:
    """Bytes that the pod's device sent and received, with IP headers."""
    stats = json.loads(run(f"ip -n {pod.namespace} -j -s link show dev eth0"))[0]["stats64"]
    sent, received = stats["tx"], stats["rx"]
    return (
        sent["bytes"] - ETHERNET_BYTES * sent["packets"],
        received["bytes"] - ETHERNET_BYTES * received["packets"],
    )


def start_pod(stack: ExitStack, number: int, node_name: str) -> NodePod:
    pod = stack.enter_context(node_pod(number, node_namespace=node_name))
    run(f"ip -n {pod.namespace} route add default via {pod.host_address}")
    return pod


def read_until(read: Callable[[], dict[str, Any]], is_complete: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read until a condition holds, because events of ended connections arrive late."""
    deadline_s = time.monotonic() + 30
    while not is_complete(totals := read()):
        assert time.monotonic() < deadline_s, totals
        time.sleep(0.1)
    return totals


def test_a_call_through_a_service_is_counted_once_with_the_pod_that_answers() -> None:
    with ExitStack() as stack:
        first = stack.enter_context(node(f"ip daddr {SERVICE} tcp dport 80 dnat to 10.251.202.2:7000"))
        second = stack.enter_context(node())
        connect_nodes(first, second, {first: "10.251.202.0/24", second: "10.251.201.0/24"})
        web, cart = start_pod(stack, 201, first), start_pod(stack, 202, second)
        stack.enter_context(running_generators(cart))
        client_collector = stack.enter_context(running_collector(first, {web.address: "web"}))
        server_collector = stack.enter_context(running_collector(second, {cart.address: "cart"}))
        with start_traffic(web, "egress", "rr", 6, SERVICE, 80) as open_connection:
            round_1 = read_until(client_collector, lambda answer: bool(answer["totals"]))
            round_2 = read_until(client_collector, lambda answer: answer["totals"][0][3] > round_1["totals"][0][3])
            assert open_connection.poll() is None, "a connection counts while it is open"
            finish_traffic(open_connection)
        round_3 = read_until(client_collector, lambda answer: answer["totals"][0][3] > round_2["totals"][0][3])
        ((client, server, port, up, down),) = round_3["totals"]
        assert (client, server, port) == ("web", cart.address, PORT)
        assert (up, down) == pytest.approx(read_device_bytes(web), rel=0.05)
        # The server's node tracks the same connection, and names only the server.
        server_round = server_collector()
        assert (server_round["totals"], server_round["servers"]) == ([], [cart.address])
        assert round_3["problem"] == ""


def test_without_accounting_nothing_is_counted_which_is_reported() -> None:
    with ExitStack() as stack:
        only = stack.enter_context(node(accounting=False))
        web, cart = start_pod(stack, 205, only), start_pod(stack, 206, only)
        stack.enter_context(running_generators(cart))
        read = stack.enter_context(running_collector(only, {web.address: "web"}))
        with start_traffic(web, "egress", "rr", 4, cart.address) as open_connection:
            round_ = read_until(read, lambda answer: answer["uncounted"] > 0)
            finish_traffic(open_connection)
        assert (round_["totals"], "nf_conntrack_acct is 0" in round_["problem"]) == ([], True)
