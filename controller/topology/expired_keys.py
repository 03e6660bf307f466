"""Which keys of a results ConfigMap nobody will write again, so that the object does not grow for ever.

What a pair of zones is worth is remembered by the controller and in the NetworkTopology, so samples go as soon as their pair of
nodes is not planned any more: a key that no plan names could be anybody's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from netperf.plans import ZonePlan
from netperf.results import planned_keys, vanished_keys

Name = TypeVar("Name")


def keys_to_remove(objects: Mapping[Name, Mapping[str, str]], plans: Iterable[ZonePlan]) -> dict[Name, set[str]]:
    """Keys of ours whose pair of nodes is not planned any more, by object.

    Args:
        objects: the data of the results ConfigMaps that our agents write.
        plans: all plans in force.
    """
    planned = planned_keys(plans).keys()
    return {name: vanished_keys(data, planned) for name, data in objects.items()}
