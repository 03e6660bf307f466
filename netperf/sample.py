"""Types of the results of a pair of nodes: a `Sample` if it was measured, a `Failure` if not.

A sample has the measurement of a run, the measurement of the datagrams, and quality flags.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from netperf.measurement import Measurement, NonNegative, NonNegativeInt, Percentile
from netperf.quality import CostSource, QualityFlag, choose_cost_source, find_quality_flags, has_enough_datagrams

MIN_FAILED_RUNS = 3
"""Fewest failed runs in a row that are reported, because single runs fail now and then."""

LabelValue = Annotated[str, msgspec.Meta(max_length=63)]
NodeName = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
FailureText = Annotated[str, msgspec.Meta(min_length=1, max_length=40)]
"""Text of a reason that this version may not know."""


class NodeLocation(msgspec.Struct, frozen=True, gc=False, order=True):
    """A node with its zone and region: the values of its labels, empty without the label."""

    node: NodeName
    zone: LabelValue
    region: LabelValue = ""


class Sample(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The measurements of one pair of nodes in one round, as they are written to the results.

    Attributes:
        origin, destination: the node that measured, and the other one.
        measurement: the measurement by netperf; by datagrams if netperf did not run or failed; or by another component.
        sequence: the writer's number of the run. ``sequence`` and ``taken_at`` identify a sample, so that readers can compute its age by
            their own clock (`netperf.cost_state.Sighting`).
        taken_at: the writer's wall clock at the end of the run, in seconds since 1970.
        quality_flags: reasons not to trust `cost_measurement`.
        datagrams: the measurement by datagrams since the previous run, if netperf ran as well.
        cost_source: the measurement that is used for the cost, see `choose_cost_source`.
        run_failure: reason of netperf's failure, if the datagrams replace its run.
        failed_runs: number of such runs in a row.
    """

    origin: NodeLocation
    destination: NodeLocation
    measurement: Measurement
    sequence: NonNegativeInt = 0
    taken_at: NonNegative = 0.0
    quality_flags: tuple[QualityFlag, ...] = ()
    datagrams: Measurement | None = None
    cost_source: CostSource = "measurement"
    run_failure: FailureText | None = None
    failed_runs: NonNegativeInt = 0

    @property
    def has_persistent_failure(self) -> bool:
        """Whether netperf failed at least `MIN_FAILED_RUNS` times in a row while datagrams passed."""
        return self.run_failure is not None and self.failed_runs >= MIN_FAILED_RUNS

    @property
    def cost_measurement(self) -> Measurement:
        """The measurement that is used for the cost."""
        return self.datagrams if self.cost_source == "datagrams" and self.datagrams is not None else self.measurement

    def percentile_us(self, percentile: Percentile) -> float | None:
        """The percentile that is used for the cost; None if it is missing.

        If the datagrams are too few for this percentile, it is that of netperf's run, unless the run has another flag than ``loss``.
        """
        value_us = self.cost_measurement.percentile_us(percentile)
        if value_us is not None or set(find_quality_flags(self.measurement, self.datagrams)) - {"loss"}:
            return value_us
        return self.measurement.percentile_us(percentile)

    @property
    def has_disagreement(self) -> bool:
        """Whether netperf and the datagrams measured different latencies, although neither is flagged."""
        quality_flags = find_quality_flags(self.measurement, self.datagrams)
        if self.datagrams is None or quality_flags or find_quality_flags(self.datagrams):
            return False
        is_usable = has_enough_datagrams(self.datagrams)
        return is_usable and choose_cost_source(self.measurement, self.datagrams, quality_flags) == "measurement"

    @property
    def zones(self) -> tuple[str, str]:
        """Origin zone, destination zone."""
        return self.origin.zone, self.destination.zone


class Failure(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A pair of nodes that could not be measured, as it is written to the results.

    Attributes:
        origin, destination: the node that measured, and the other one.
        reason: a `netperf.probers.failure.FailureReason`; ``failure`` in JSON.
        failures_in_a_row: number of failures since the last success.
        has_answered: False if the path may be broken, see `netperf.probers.failure.ProbeFailedError`.
        sequence: number of the run, as in `Sample`; the higher number is newer.
        taken_at: the writer's wall clock at the end of the run, in seconds since 1970.
    """

    origin: NodeLocation
    destination: NodeLocation
    reason: FailureText = msgspec.field(name="failure")
    failures_in_a_row: NonNegativeInt = 1
    has_answered: bool = False
    sequence: NonNegativeInt = 0
    taken_at: NonNegative = 0.0
