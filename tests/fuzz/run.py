"""Readers of foreign input against a million inputs each; what breaks one is kept in tests/fuzz/corpus.

`make fuzz`, or `make fuzz ARGS="plan results --inputs 20000 --seed 7"`. Without ``--seed`` each run makes other inputs. Exit code 1
when a reader raised what it does not promise.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fuzz.inputs import failure, inputs_of, keep
from tests.fuzz.readers import READERS, SLOW

INPUTS, SLOW_SHARE = 1_000_000, 100
MOST_KEPT = 5


def fuzz(name: str, *, count: int, seed: str) -> tuple[str, int, float, list[str]]:
    """Reader, inputs, seconds, and what broke it, five kinds at most."""
    started, broken, number = time.monotonic(), dict[str, str](), 0
    for text in inputs_of(name, count // SLOW_SHARE if name in SLOW else count, seed):
        number += 1
        found = failure(name, text)
        if found and found.partition(":")[0] not in broken and len(broken) < MOST_KEPT:
            broken[found.partition(":")[0]] = f"{keep(name, text).name}: {found}"
    return name, number, time.monotonic() - started, list(broken.values())


def main() -> int:
    """Fuzz the readers asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(READERS)}; by default all")
    parser.add_argument(
        "--inputs", type=int, default=INPUTS, help="for each; a hundredth for those of YAML (%(default)s)"
    )
    parser.add_argument("--seed", help="repeats a run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="at a time (%(default)s)")
    arguments = parser.parse_args()
    unknown = set(arguments.readers) - set(READERS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    seed = str(random.SystemRandom().randrange(1 << 31)) if arguments.seed is None else arguments.seed
    print(f"seed {seed}", flush=True)
    broken = 0
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        work = partial(fuzz, count=arguments.inputs, seed=seed)
        for name, count, seconds, found in pool.imap_unordered(work, arguments.readers or list(READERS)):
            print(f"{name:26} {count:9} inputs {seconds:8.1f} s  {'broken' if found else 'holds'}", flush=True)
            for text in found:
                print(f"    {text}", flush=True)
            broken += bool(found)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
