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
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab.debian import find_or_unpack_packages
from tests.integration.agent.limit_measurements import PORT, finish_traffic, running_generators, start_traffic
from tests.integration.agent.pods_on_node import NodePod, needs_root, node_pod, run_command
from tests.support.unsupported import skip_if_unsupported

COUNTING = Path(__file__).with_name("counting_in_namespace.py")
SERVICE = "10.96.0.1"
ETHERNET_BYTES = 14
NFT_TABLE = """
table ip proxy {{
  chain pre {{
    type nat hook prerouting priority -100;
    {rules}
  }}
  chain passing {{
    type filter hook forward priority 0;
    # Naming a connection's state turns tracking on, whether or not anything is translated.
    ct state invalid drop
  }}
}}
"""

pytestmark = [needs_root, pytest.mark.timeout(240)]


@contextmanager
def running_node(*rules: str, has_accounting: bool = True) -> Iterator[str]:
    """A node: a namespace that forwards, tracks connections, and translates addresses by ``rules``."""
    packages = skip_if_unsupported(lambda: find_or_unpack_packages("node", ("runc", "nftables")))
    name = f"nanode-{uuid.uuid4().hex[:6]}"
    run_command(f"ip netns add {name}")
    try:
        run_command(f"ip -n {name} link set lo up")
        for setting in ("net.ipv4.ip_forward=1", f"net.netfilter.nf_conntrack_acct={int(has_accounting)}"):
            run_command(f"ip netns exec {name} sysctl -qw {setting}")
        nft_run = subprocess.run(
            ["ip", "netns", "exec", name, str(packages.find_program("nft")), "-f", "-"],
            input=NFT_TABLE.format(rules="\n".join(rules)),
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, **packages.environment},
        )
        assert nft_run.returncode == 0, nft_run.stderr
        yield name
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)


def connect_nodes(client_node: str, server_node: str, *, client_number: int, server_number: int) -> None:
    """Connect two nodes, and route to each node's pod, which has this number."""
    run_command(f"ip link add wire netns {client_node} type veth peer name wire netns {server_node}")
    for name, address, peer, peer_number in (
        (client_node, "10.250.0.1", "10.250.0.2", server_number),
        (server_node, "10.250.0.2", "10.250.0.1", client_number),
    ):
        run_command(f"ip -n {name} addr add {address}/30 dev wire")
        run_command(f"ip -n {name} link set wire up")
        run_command(f"ip -n {name} route add 10.251.{peer_number}.0/24 via {peer}")


@contextmanager
def running_collector(node_name: str, pods: Mapping[str, str]) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yield a function that runs a round of the agent's collector on a node and returns its totals. Counting has started."""
    # The collector's container has no other capability.
    capability_options = [f"--{which}=-all,+net_admin" for which in ("inh-caps", "bounding-set")]
    command = ["ip", "netns", "exec", node_name, "setpriv", "--no-new-privs", *capability_options]
    command += [sys.executable, str(COUNTING), json.dumps(pods)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        requests, answers = program.stdin, program.stdout

        def read_round() -> dict[str, Any]:
            print(file=requests, flush=True)
            return dict(json.loads(answers.readline()))

        read_round()  # starts counting
        yield read_round
        requests.close()


def read_device_bytes(pod: NodePod) -> tuple[int, int]:
    """Bytes that the pod's device sent and received, with IP headers."""
    stats = json.loads(run_command(f"ip -n {pod.namespace} -j -s link show dev eth0"))[0]["stats64"]
    sent, received = stats["tx"], stats["rx"]
    return sent["bytes"] - ETHERNET_BYTES * sent["packets"], received["bytes"] - ETHERNET_BYTES * received["packets"]


def start_pod(stack: ExitStack, number: int, node_name: str) -> NodePod:
    """A pod with the address 10.251.<number>.2."""
    pod = stack.enter_context(node_pod(number, node_namespace=node_name))
    run_command(f"ip -n {pod.namespace} route add default via {pod.host_address}")
    return pod


def read_until(
    read_round: Callable[[], dict[str, Any]], is_complete: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Read until a condition holds, because events of ended connections arrive late."""
    deadline_s = time.monotonic() + 30
    while not is_complete(traffic_round := read_round()):
        assert time.monotonic() < deadline_s, traffic_round
        time.sleep(0.1)
    return traffic_round


def has_grown(former_round: dict[str, Any], traffic_round: dict[str, Any]) -> bool:
    """Whether a round has more response bytes than a former one."""
    former_bytes = sum(response_bytes for *_, response_bytes in former_round["totals"])
    return bool(sum(response_bytes for *_, response_bytes in traffic_round["totals"]) > former_bytes)


def test_a_call_through_a_service_is_counted_once_with_the_pod_that_answers() -> None:
    with ExitStack() as stack:
        client_node = stack.enter_context(running_node(f"ip daddr {SERVICE} tcp dport 80 dnat to 10.251.202.2:{PORT}"))
        server_node = stack.enter_context(running_node())
        connect_nodes(client_node, server_node, client_number=201, server_number=202)
        web, cart = start_pod(stack, 201, client_node), start_pod(stack, 202, server_node)
        stack.enter_context(running_generators(cart))
        read_client_round = stack.enter_context(running_collector(client_node, {web.address: "web"}))
        read_server_round = stack.enter_context(running_collector(server_node, {cart.address: "cart"}))

        with start_traffic(web, "egress", "rr", 6, SERVICE, 80) as open_connection:
            client_round = read_client_round()
            for _ in range(2):
                client_round = read_until(read_client_round, partial(has_grown, client_round))
            assert open_connection.poll() is None, "a connection counts while it is open"
            finish_traffic(open_connection)
        client_round = read_until(read_client_round, partial(has_grown, client_round))
        server_round = read_server_round()
        ((client, server, port, request_bytes, response_bytes),) = client_round["totals"]
        assert (client, server, port) == ("web", cart.address, PORT)
        assert (request_bytes, response_bytes) == pytest.approx(read_device_bytes(web), rel=0.05)
        assert client_round["problem"] == ""
        # The server's node tracks the same connection, and names only the server.
        assert server_round["totals"] == []
        assert server_round["servers"] == [cart.address]


def test_missing_accounting_is_reported_and_nothing_is_counted() -> None:
    with ExitStack() as stack:
        node_name = stack.enter_context(running_node(has_accounting=False))
        web, cart = start_pod(stack, 205, node_name), start_pod(stack, 206, node_name)
        stack.enter_context(running_generators(cart))
        read_round = stack.enter_context(running_collector(node_name, {web.address: "web"}))
        with start_traffic(web, "egress", "rr", 4, cart.address) as open_connection:
            traffic_round = read_until(read_round, lambda traffic_round: traffic_round["uncounted"] > 0)
            finish_traffic(open_connection)
        assert traffic_round["totals"] == []
        assert "nf_conntrack_acct is 0" in traffic_round["problem"]
