"""What `propose` would propose now, for the page: by the command's own function, in a process of its own.

Drawing rollouts takes a processor for seconds, and a listing of all pods takes memory that is not the leader's to lose: the process
is nice, has a deadline and a bound of memory, and goes with its parent. What it told is kept for as long as traffic is taken to stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from controller.config import ControllerConfiguration
from controller.prometheus import PrometheusClient
from controller.scheduler.config import SchedulerConfig
from controller.scheduler.worker import NICENESS, die_with_parent
from controller.traffic.config import TrafficConfig
from controller.traffic.prices import PriceTable
from controller.traffic.proposals import Wish
from kubekit import logs
from kubekit.client import Client
from kubekit.config import load_cluster
from kubekit.errors import KubekitError
from netperf.contract import PAGE_ACCOUNT

log = logs.get("controller.proposing")

DEADLINE_S, DRAWN_S = 120.0, 5.0
"""For the process, and for the rollouts that are drawn of each group."""
MOST_MEMORY = 256 << 20
MOST_ANSWER = 4 << 20
"""Of which the leader keeps `MOST_KEPT`."""
FAILED_FRESH_S = 10.0
MOST_KEPT, MOST_WAITING = 16, 8
NO_SOURCE = (
    "no Prometheus is named: set traffic.prometheusUrl (or page.prometheusUrl) in the controller's configuration"
)


class ProposalQuestion(msgspec.Struct, frozen=True):
    """What the process is asked."""

    namespace: str
    prometheus: str
    source: str
    window_s: int
    prices: PriceTable | None
    home: str
    kubeconfig: str | None
    scheduler: SchedulerConfig


class Told(msgspec.Struct, frozen=True):
    """What the page is told.

    Attributes:
        at: unix seconds.
        proposed: what ``propose -o json`` prints, without what it left out; None where it failed.
        error: why it did; empty where it did not.
        notes: what could not be read, where traffic is known from, and what that does not know.
        command: that writes it.
    """

    namespace: str
    at: float
    proposed: Any = None
    error: str = ""
    notes: tuple[str, ...] = ()
    command: str = ""


_decode_question = msgspec.json.Decoder(ProposalQuestion).decode
_decode_told = msgspec.json.Decoder(Told).decode


class Proposer:
    """The event loop's end: one process at a time, an answer for everybody who asks the same meanwhile.

    Args:
        traffic: where traffic is known from; answers are kept for its period.
        prometheus: its address; empty for none.
        home: netaware's namespace.
        scheduler: by which proposals are judged.
        kubeconfig: as the manager was given it.
        clock: unix seconds.
    """

    def __init__(
        self,
        traffic: TrafficConfig,
        prometheus: str,
        *,
        home: str,
        scheduler: SchedulerConfig,
        kubeconfig: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._traffic, self._prometheus, self._home, self._kubeconfig = traffic, prometheus, home, kubeconfig
        self._scheduler, self._clock, self._turn = scheduler, clock, asyncio.Lock()
        self._kept: dict[str, tuple[float, bytes]] = {}
        self._making: dict[str, asyncio.Task[bytes]] = {}

    def ask(self, namespace: str) -> asyncio.Task[bytes] | bytes | None:
        """The answer as JSON (see `Told`), or who makes it, or None where too many others wait."""
        until, kept = self._kept.get(namespace, (0.0, b""))
        if self._clock() < until:
            return kept
        making = self._making.get(namespace)
        if making is None:
            if len(self._making) >= MOST_WAITING:
                return None
            making = self._making[namespace] = asyncio.ensure_future(self._make(namespace))
            making.add_done_callback(lambda _: self._making.pop(namespace, None))
        return making

    async def _make(self, namespace: str) -> bytes:
        question = ProposalQuestion(
            namespace,
            self._prometheus,
            self._traffic.source,
            self._traffic.window_s,
            self._traffic.prices.table(),
            self._home,
            self._kubeconfig,
            self._scheduler,
        )
        failed, answer = "", None
        if not self._prometheus:
            failed = NO_SOURCE
        else:
            # Whatever happens becomes an answer that is kept: the next who asks shall not start a process at once.
            try:
                async with self._turn:
                    text, failed = await _run(question)
                answer = None if failed else _decode_told(text)
            except OSError as error:
                failed = f"its process does not start: {error.strerror}"
            except ValueError:
                # Every error of msgspec is one, and so is that of text that is no UTF-8.
                failed = "its answer is broken"
            if failed:
                log.warning("a proposal for the page failed", namespace=namespace, error=failed)
        answer = answer or Told(namespace, self._clock(), error=failed)
        text = msgspec.json.encode(msgspec.structs.replace(answer, command=self._command(namespace)))
        fresh_s = FAILED_FRESH_S if answer.error else self._traffic.period_s
        self._kept.pop(namespace, None)
        self._kept[namespace] = self._clock() + fresh_s, text
        while len(self._kept) > MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return text

    def _command(self, namespace: str) -> str:
        words = f"kubectl netaware propose -n {namespace} --prometheus http://HOST:PORT --window {self._traffic.window_s // 60}m"
        words += f" --source {self._traffic.source}" if self._traffic.source else ""
        words += f" --prices {self._traffic.prices.preset}" if self._traffic.prices.preset else ""
        return f"{words} --apply"


async def _run(question: ProposalQuestion) -> tuple[bytes, str]:
    """The process's answer, or why there is none."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "controller.cli.proposing", stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        async with asyncio.timeout(DEADLINE_S):
            text, said = await process.communicate(msgspec.json.encode(question))
    except TimeoutError:
        return b"", f"not made within {DEADLINE_S:.0f} s; ask kubectl netaware propose"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await asyncio.shield(process.wait())
    if process.returncode == 0:
        return text, ""
    last = (said.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1][:300]
    log.warning("a proposal for the page failed", namespace=question.namespace, error=last)
    if "MemoryError" in last:
        return (
            b"",
            f"it takes more than the {MOST_MEMORY >> 20} MiB that the page gives it; ask kubectl netaware propose",
        )
    return b"", f"it failed: {last}"


async def answer(question: ProposalQuestion) -> Told:
    """Make it; what a person has to know of failures is in the answer."""
    # Here and not above: the leader, which imports this module, shall not hold what only the command needs.
    from controller.cli.propose import make_proposals
    from controller.cli.session import Session

    async with (
        Client(load_cluster(question.kubeconfig), user_agent=PAGE_ACCOUNT) as client,
        PrometheusClient(question.prometheus) as prometheus,
    ):
        given = ControllerConfiguration(scheduler=question.scheduler)
        session = Session(client, prometheus, question.namespace, question.home, given=given)
        try:
            proposed = await make_proposals(
                session,
                question.namespace,
                source=question.source,
                window_s=question.window_s,
                prices=question.prices,
                wish=Wish(),
                longest_s=DRAWN_S,
            )
        except KubekitError as error:
            # Where Prometheus is concerns no viewer.
            return Told(question.namespace, time.time(), error=str(error).replace(prometheus.url, "Prometheus"))
    notes = (*(f"{what}: {why}" for what, why in session.notes.items()), *session.remarks)
    return Told(question.namespace, time.time(), msgspec.structs.replace(proposed, left_out=()), notes=notes)


def bounded(namespace: str, text: bytes) -> bytes:
    """An answer, or, in its place, that it is too large for the page."""
    if len(text) <= MOST_ANSWER:
        return text
    error = f"it is larger than the {MOST_ANSWER >> 20} MiB that the page shows; ask kubectl netaware propose"
    return msgspec.json.encode(Told(namespace, time.time(), error=error))


def main() -> None:
    """Answer the one question on standard input."""
    die_with_parent()
    os.nice(NICENESS)
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    logs.set_up(level="error")
    question = _decode_question(sys.stdin.buffer.read())
    sys.stdout.buffer.write(bounded(question.namespace, msgspec.json.encode(asyncio.run(answer(question)))))


if __name__ == "__main__":
    main()
