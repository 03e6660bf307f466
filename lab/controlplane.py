"""Boots a control plane: etcd, kube-apiserver, and on request controller manager, scheduler and kwok.

Programs listen on free ports, and files are in one state directory, so several control planes can run side by side. The API server is
stopped before etcd, because without etcd it ignores SIGTERM for a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from agent.capacity.publication import KWOK_ANNOTATION
from controller.cluster.pods import OUR_SCHEDULER
from kubekit.client import Client
from kubekit.config import ClusterConfig, load_cluster_config
from kubekit.errors import ApiError, UnreachableError
from kubekit.wire import SERVICE_ACCOUNTS, Object, Resource
from lab.build import Binaries, find_or_build_binaries
from lab.certificates import CertificateAuthority, KeyPair, generate_signing_key
from lab.controlplane_commands import (
    LOOPBACK,
    build_api_server_command,
    build_controller_manager_command,
    build_etcd_command,
)
from lab.credentials import credentials_dir, save_credentials, save_kubeconfig
from lab.errors import BootError
from lab.paths import write_private
from lab.programs import Program, Programs, run_command
from lab.scheduler_config import DEFAULT_PROFILE, build_scheduler_config

SERVICE_ADDRESS, SERVICE_DNS = "10.96.0.1", "10.96.0.10"
# Long enough for emulated and for busy machines.
READY_TIMEOUT_S = 300.0
KUBECTL_TIMEOUT_S = 60.0
KWOK_NODE_ANNOTATION = (KWOK_ANNOTATION, "fake")
_POLL_S = 0.05
_BOOT_ATTEMPTS = 3
_TOKEN_LIFETIME_S = 86400
_STAGES = Path(__file__).parent / "stages.yaml"


@dataclass
class ControlPlane:
    """A running control plane; use ``async with ControlPlane.start(...) as control_plane``.

    Attributes:
        state_dir: folder of certificates, etcd's data, logs and kubeconfigs.
        authority: signs all certificates.
        admin_token: bearer token with the administrator's rights.
        etcd: URL of etcd, which requires a client certificate (``pki/etcd.crt``).
    """

    state_dir: Path
    address: str
    binaries: Binaries
    programs: Programs
    authority: CertificateAuthority
    admin_token: str
    server: str = ""
    etcd: str = ""
    api_server_flags: tuple[str, ...] = ()
    _serving: KeyPair = field(init=False)

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        name: str = "lab",
        *,
        state_dir: Path,
        components: Iterable[str] = ("controller-manager",),
        address: str = LOOPBACK,
        binaries: Binaries | None = None,
        programs: Programs | None = None,
        api_server_flags: Iterable[str] = (),
    ) -> AsyncIterator[ControlPlane]:
        """Start etcd and the API server, then ``components``. The end of the block stops them all.

        Args:
            name: common name of the certificate authority.
            state_dir: an empty or absent directory.
            components: any of ``controller-manager``, ``scheduler`` (both profiles, no extender) and ``kwok``.
            address: IP address at which the API server listens; all its clients must reach it.
            binaries: files of the programs; None to find or build them.
            programs: the lab's running programs, to which these are added; None for a control plane without a lab.
            api_server_flags: further flags of kube-apiserver, such as those of its audit log.

        Raises:
            BuildError: the binaries are missing and cannot be built.
            BootError: a program ended or did not become ready; the message has the end of its log.
        """
        if binaries is None:
            binaries = await asyncio.to_thread(find_or_build_binaries)
        authority = CertificateAuthority(state_dir / "pki", f"netaware-lab-{name}")
        running_programs = programs or Programs(state_dir)
        flags, token = tuple(api_server_flags), secrets.token_hex(16)
        control_plane = cls(state_dir, address, binaries, running_programs, authority, token, api_server_flags=flags)
        try:
            await control_plane._boot()
            starters: dict[str, Callable[[], Awaitable[Program]]] = {
                "controller-manager": control_plane.start_controller_manager,
                "scheduler": control_plane.start_scheduler,
                "kwok": control_plane.start_kwok,
            }
            for component in components:
                await starters[component]()
            yield control_plane
        finally:
            # Shielded, because a cancelled stop would leave programs running.
            await asyncio.shield(asyncio.ensure_future(running_programs.stop_all()))

    @property
    def _feature_gate_flags(self) -> tuple[str, ...]:
        """Flags that enable PodGroups, which are beta and off by default in 1.37; empty for older versions."""
        minor = int(self.binaries.version.split(".")[1])
        return ("--feature-gates=GenericWorkload=true",) if minor >= 37 else ()

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, with a client certificate in system:masters."""
        return self.kubeconfig_of("admin")

    def kubeconfig_of(self, name: str) -> Path:
        """Path of the kubeconfig with this stem."""
        return self.state_dir / f"{name}.kubeconfig"

    @property
    def kubectl(self) -> Path:
        return self.binaries["kubectl"]

    @property
    def client_config(self) -> ClusterConfig:
        """The administrator's connection for kubekit's Client."""
        return load_cluster_config(credentials_dir(self.kubeconfig))

    async def run_kubectl(self, *arguments: str | Path, timeout_s: float = KUBECTL_TIMEOUT_S) -> str:
        """Run kubectl as the administrator; returns its output. Raises BootError if it fails or does not end in time."""
        command = [self.kubectl, f"--kubeconfig={self.kubeconfig}", *arguments]
        output = await run_command(command, f"kubectl {' '.join(map(str, arguments))}", timeout_s)
        return output.decode()

    async def start_controller_manager(self, flags: Iterable[str] = ()) -> Program:
        """Start kube-controller-manager and wait for the default service account, which it creates. ``flags`` override the lab's."""
        kubeconfig = self.write_kubeconfig("controller-manager", "system:kube-controller-manager")
        binary = self.binaries["kube-controller-manager"]
        command = build_controller_manager_command(binary, kubeconfig, self.authority)
        program = self.programs.start("kube-controller-manager", [*command, *self._feature_gate_flags, *flags])
        async with Client(self.client_config) as client:
            account = SERVICE_ACCOUNTS.path("default", "default")
            await self._wait_until(lambda: _responds(client, account), "the default service account")
        return program

    async def start_scheduler(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        name: str = "kube-scheduler",
        extender_url: str | None = None,
        profiles: Sequence[str] = (DEFAULT_PROFILE, OUR_SCHEDULER),
        kubeconfig: Path | None = None,
    ) -> Program:
        """Start kube-scheduler and wait until it is ready.

        ``config`` is a KubeSchedulerConfiguration without credentials; None: that of `build_scheduler_config` with ``extender_url`` and
        ``profiles``. Without a ``kubeconfig``, it has the rights of Kubernetes' own scheduler.
        """
        port = find_free_ports(1)[0]
        kubeconfig = kubeconfig or self.write_kubeconfig("scheduler", "system:kube-scheduler")
        data = {**(config or build_scheduler_config(extender_url=extender_url, profiles=profiles))}
        data["clientConnection"] = {**data.get("clientConnection", {}), "kubeconfig": str(kubeconfig)}
        config_file = self.state_dir / f"{name}.yaml"
        config_file.write_text(yaml.safe_dump(data))
        argv: list[str | Path] = [
            self.binaries["kube-scheduler"],
            f"--config={config_file}",
            f"--authentication-kubeconfig={kubeconfig}",
            f"--authorization-kubeconfig={kubeconfig}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            f"--tls-cert-file={self._serving.certificate}",
            f"--tls-private-key-file={self._serving.key}",
            *self._feature_gate_flags,
        ]
        program = self.programs.start(name, argv)
        health = ClusterConfig(f"https://{LOOPBACK}:{port}", ssl_context=self.client_config.ssl_context)
        async with Client(health, timeout_s=2.0) as client:
            await self._wait_until(lambda: _responds(client, "/readyz"), f"{name} to be ready")
        return program

    async def start_kwok(self) -> Program:
        """Start kwok, which simulates the kubelet of nodes with the annotation ``kwok.x-k8s.io/node: fake``."""
        kubeconfig = self.write_kubeconfig("kwok", "kwok", organization="system:masters")
        argv: list[str | Path] = [
            self.binaries["kwok"],
            f"--kubeconfig={kubeconfig}",
            f"--config={_STAGES}",
            "--manage-all-nodes=false",
            f"--manage-nodes-with-annotation-selector={'='.join(KWOK_NODE_ANNOTATION)}",
            "--node-lease-duration-seconds=40",
            "--cidr=10.244.0.0/16",
            "--v=WARN",
        ]
        return self.programs.start("kwok", argv)

    def write_kubeconfig(self, file_name: str, user: str, *, organization: str = "") -> Path:
        """Issue a client certificate for ``user``; write and return a kubeconfig with it, ``<file_name>.kubeconfig``."""
        pair = self.authority.issue(file_name, user, organization=organization)
        credentials = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        return self._write_kubeconfig_and_credentials(self.kubeconfig_of(file_name), user, credentials, "default")

    async def write_token_kubeconfig(
        self, namespace: str, service_account: str, *, file_name: str = "", bound_pod: tuple[str, str] | None = None
    ) -> Path:
        """Request a service account's token, valid for a day; write and return a kubeconfig with it.

        ``file_name`` is the stem of the file, by default the service account's name. ``bound_pod`` is name and uid of the pod to bind the
        token to; the API server adds the node of a bound pod to the user's extra fields, which the policy for agents needs.
        """
        spec: dict[str, Any] = {"expirationSeconds": _TOKEN_LIFETIME_S}
        if bound_pod is not None:
            spec["boundObjectRef"] = {"kind": "Pod", "apiVersion": "v1", "name": bound_pod[0], "uid": bound_pod[1]}
        url = SERVICE_ACCOUNTS.path(namespace, service_account, "token")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        async with Client(self.client_config) as client:
            response = await client.request("POST", url, body=body)
        token = {"token": str(msgspec.json.decode(response)["status"]["token"])}
        return self._write_kubeconfig_and_credentials(
            self.kubeconfig_of(file_name or service_account), service_account, token, namespace
        )

    def _write_kubeconfig_and_credentials(
        self, path: Path, user: str, credentials: Mapping[str, str], namespace: str
    ) -> Path:
        """Write a kubeconfig, and beside it the credentials directory that our programs read; return the kubeconfig's path."""
        cluster = {"server": self.server, "certificate-authority": str(self.authority.certificate)}
        save_kubeconfig(path, cluster, user, credentials, namespace)
        save_credentials(credentials_dir(path), cluster["server"], self.authority.certificate, credentials, namespace)
        return path

    async def _boot(self) -> None:
        names = (LOOPBACK, "localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", SERVICE_ADDRESS)
        hosts = tuple(dict.fromkeys((self.address, *names)))
        self._serving = self.authority.issue("serving", "kube-apiserver", hosts=hosts)
        generate_signing_key(self.authority.folder / "sa.key")
        tokens = self.state_dir / "tokens.csv"
        write_private(tokens, f'{self.admin_token},admin,admin,"system:masters"\n')
        for attempt in range(_BOOT_ATTEMPTS):
            try:
                await self._start_etcd_and_api_server()
                return
            except BootError as error:
                # Another program may have taken a port since `find_free_ports`; the next attempt chooses other ports.
                if "address already in use" not in str(error) or attempt == _BOOT_ATTEMPTS - 1:
                    raise
                await self.programs.stop_all()

    async def _start_etcd_and_api_server(self) -> None:
        etcd_port, peer_port, api_port = find_free_ports(3)
        self.server, self.etcd = f"https://{self.address}:{api_port}", f"https://{LOOPBACK}:{etcd_port}"
        etcd_pair = self.authority.issue("etcd", "etcd", hosts=(LOOPBACK, "localhost"))
        self.programs.start(
            "etcd",
            build_etcd_command(
                self.binaries["etcd"],
                self.state_dir / "etcd",
                etcd_pair,
                self.authority.certificate,
                client_port=etcd_port,
                peer_port=peer_port,
            ),
        )
        await self._wait_until(lambda: _is_listening(etcd_port), "etcd to listen")
        command = build_api_server_command(
            self.binaries["kube-apiserver"],
            self.authority,
            self._serving,
            address=self.address,
            port=api_port,
            etcd=self.etcd,
            tokens=self.state_dir / "tokens.csv",
        )
        podgroup_flags = ("--runtime-config=scheduling.k8s.io/v1beta1=true",) if self._feature_gate_flags else ()
        flags = (*self._feature_gate_flags, *podgroup_flags, *self.api_server_flags)
        self.programs.start("kube-apiserver", [*command, *flags])
        self.write_kubeconfig("admin", "kubernetes-admin", organization="system:masters")
        async with Client(self.client_config, timeout_s=5.0) as client:
            await self._wait_until(lambda: _responds(client, "/readyz"), "the API server to be ready")

    async def _wait_until(self, check: Callable[[], Awaitable[bool]], description: str) -> None:
        """Poll until ``check`` is true. Raises BootError if a program ends, or after `READY_TIMEOUT_S`."""
        await self.programs.wait_until(
            check, lambda: f"{description}; {list(self.programs)[-1].log_excerpt}", READY_TIMEOUT_S, _POLL_S
        )


def find_free_ports(count: int) -> list[int]:
    """Different free TCP ports of the loopback address, chosen by the kernel."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind((LOOPBACK, 0))
        return [int(sock.getsockname()[1]) for sock in sockets]


async def object_exists(client: Client, resource: Resource, name: str, namespace: str | None = None) -> bool:
    """Whether an object of this name exists. Raises as `Client.get`."""
    try:
        await client.get(resource, name, Object, namespace=namespace)
    except ApiError as error:
        if not error.is_not_found:
            raise
        return False
    return True


async def _is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError:
        return False
    writer.close()
    return True


async def _responds(client: Client, path: str) -> bool:
    try:
        await client.request("GET", path)
    except (ApiError, UnreachableError):
        return False
    return True
