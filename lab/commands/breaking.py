"""``python -m lab break`` and ``repair``: see what failure looks like, in a running lab, and undo it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from kubekit.errors import ConfigError
from lab.commands import arguments
from lab.commands.up import read_description
from lab.faults import NAMES, Faults, offs
from lab.programs import agent_program
from lab.realnode.node import NODE
from lab.reclaim import place_of

BREAK = """\
Breaks one thing in a running lab, for people who want to see what failure looks like: in `kubectl netaware diagnose`, on the page, in events
and alerts. The lab goes on, its kubeconfig works, and `status` says what is broken. `repair` undoes it.
"""
BREAK_EXAMPLES = """\
examples:
  python -m lab break controller             kill it: gates stay shut, costs stay as they are
  python -m lab break controller --freeze    it hangs: the Lease grows old, nothing crashes
  python -m lab break extender               pods are placed without regard to the network
  python -m lab break scheduler              pods stay Pending
  python -m lab break agent n3               one node is no longer measured
  python -m lab break zone z2                no agent of the zone works
  python -m lab break pair z1 z3             every packet between the two zones is lost
  kubectl netaware diagnose                  what is wrong, its cause, and what fixes it
  python -m lab repair                         all of it
"""
REPAIR = """\
Undoes what `break` did, or what ended by itself: starts programs again, lets frozen ones go on, and lets packets through. Without
anything named it repairs all that is broken.
"""
REPAIR_EXAMPLES = """\
examples:
  python -m lab repair
  python -m lab repair controller
  python -m lab repair agent n3
  python -m lab repair pair z1 z3
"""
WHAT = ("controller", "extender", "scheduler", "agent", "zone", "pair")


def add_parser(commands: Any) -> None:
    """Describe both commands."""
    for name, help_, description, examples, run in (
        ("break", "break a program or a path of a running lab", BREAK, BREAK_EXAMPLES, run_break),
        ("repair", "undo what `break` did", REPAIR, REPAIR_EXAMPLES, run_repair),
    ):
        parser = commands.add_parser(
            name,
            help=help_,
            description=description,
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        parser.add_argument("what", choices=WHAT, nargs="?" if name == "repair" else None, help="what kind of thing")
        parser.add_argument("which", nargs="*", metavar="NAME", help="a node, a zone, or two zones")
        if name == "break":
            parser.add_argument("--freeze", action="store_true", help="let the program hang instead of killing it")
        arguments.add_name(parser)
        arguments.add_json(parser)
        parser.set_defaults(run=run)


def run_break(args: argparse.Namespace) -> int:
    """Break it, and print what is broken now."""
    faults, lab = _of(args.name)
    if args.what == "pair":
        if args.freeze:
            raise ConfigError("--freeze", "is for programs", "leave it out")
        faults.cut(*_pair(args.which))
    else:
        faults.strike(_programs(args.what, args.which, lab), freeze=args.freeze)
    return _print(args, faults)


def run_repair(args: argparse.Namespace) -> int:
    """Repair it, and print what was done and what is still broken; 1 when what was to be repaired still is."""
    faults, lab = _of(args.name)
    if args.what is None:
        tried = faults.repair()
    elif args.what == "pair":
        tried = faults.repair(pairs=[_pair(args.which)])
    else:
        tried = faults.repair(names=_programs(args.what, args.which, lab))
    left, place = faults.now, place_of(args.name)
    failed = [name for name in tried.ended if name in left.ended]
    for done, names in (
        ("started again", [name for name in tried.ended if name not in left.ended]),
        ("goes on", tried.frozen),
        ("connected again", [" and ".join(pair) for pair in tried.cut]),
    ):
        if names:
            print(f"{done}: {', '.join(names)}", file=sys.stderr)
    for node in offs(tried):
        if f"{NODE}-{node}" not in failed:
            print(f"node {node} was off; its kubelet makes its pods anew, which takes a while", file=sys.stderr)
    for name in failed:
        print(f"{name} does not run: see {place.logs / name}.log and {place.supervisor_log}", file=sys.stderr)
    return _print(args, faults) or bool(failed)


def _of(name: str) -> tuple[Faults, dict[str, Any]]:
    place = arguments.running(name, "up --programs")
    return Faults(place), read_description(place)


def _pair(names: list[str]) -> tuple[str, str]:
    if len(names) != 2:
        raise ConfigError("pair", f"needs two zones and got {len(names)}", "write pair z1 z3")
    return names[0], names[1]


def _programs(what: str, names: list[str], lab: dict[str, Any]) -> tuple[str, ...]:
    if what in NAMES:
        if names:
            raise ConfigError(what, f"takes no name and got {' '.join(names)}", f"write {what}")
        return (NAMES[what],)
    if len(names) != 1:
        raise ConfigError(what, f"needs one name and got {len(names)}", f"write {what} NAME")
    if what == "agent":
        return (agent_program(names[0]),)
    nodes = [node["name"] for node in lab["nodes"] if node["zone"] == names[0]]
    if not nodes:
        raise ConfigError("zone", f"there is no zone {names[0]}", f"one of {', '.join(lab['zones'])}")
    return tuple(map(agent_program, nodes))


def _print(args: argparse.Namespace, faults: Faults) -> int:
    broken = faults.now
    if args.json:
        arguments.print_json(broken)
        return 0
    for words, names in (
        ("ended", broken.ended),
        ("frozen", broken.frozen),
        ("cut", [" and ".join(pair) for pair in broken.cut]),
    ):
        if names:
            print(f"{words}: {', '.join(names)}", file=sys.stderr)
    print(
        "`kubectl netaware diagnose` says what follows; `repair` undoes it" if broken else "nothing is broken",
        file=sys.stderr,
    )
    return 0
