"""``scripts/soak``: mixed load on the whole topology while parts of it die at random.

    warm-up    load of twice as many clients, so that pools are as large as they will ever be;
               then a rest, in which is noted what everything holds
    storm      load, and a blow every few seconds; then a rest
    calm       the same load, without what kills its own process; then a rest, and the comparison

At the end every run that was accepted has ended exactly once, in a status that its kind of work
may have; no step was begun twice in one attempt; the invariants of the fault tests hold; and
nothing has grown. Prints tables; exits with 1 when something is wrong.
"""

import argparse
import random
import shutil
import socket
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from persistence import migrate
from persistence.lifecycle import TERMINAL
from tests.faults import invariants
from tests.faults.conftest import SideEffects, Topology, _eventually
from tests.faults.outages.services import Service, own_postgres, own_valkey
from tests.soak import growth, work
from tests.soak.blows import Blows
from tests.soak.growth import Line, Rest
from tests.soak.ledger import Ledger
from tests.soak.load import Load

SETTINGS = {
    "CALLBOARD_WORKERS": "2",
    "CALLBOARD_GATEWAYS": "2",
    "WORKER_COUNT": "1",
    "N_JOBS_PER_WORKER": "6",
    "CANCEL_GRACE_SECONDS": "1",
    "RETIRE_TIMEOUT_SECONDS": "3",
    "WORKER_DRAIN_TIMEOUT": "3",
    "LEASE_DURATION_SECONDS": "8",
    "HEARTBEAT_INTERVAL_SECONDS": "2",
    "REAPER_INTERVAL_SECONDS": "2",
    "POSTGRES_POLL_INTERVAL_SECONDS": "1",
    # Pools that are always full: what is held at rest is the same each time.
    "DATABASE_POOL_MIN": "4",
    "DATABASE_POOL_MAX": "4",
    "EXECUTOR_POOL_MAX": "2",
    "STREAM_TTL_SECONDS": "30",  # longer than a client's way back; then Redis shall be empty
}
WARM_UP, STORM, CALM = 0.15, 0.55, 0.3
"""Shares of the time."""


class Soak:
    """One soak, from its start to its verdict."""

    def __init__(
        self, topology: Topology, postgres: Service, valkey: Service, options: argparse.Namespace
    ) -> None:
        self._topology, self._options = topology, options
        self._ledger = Ledger()
        draw = random.Random(options.seed)
        self._blows = Blows(topology, postgres, valkey, draw)
        self._draw = draw
        self._struck: Counter[str] = Counter()
        self._effects = SideEffects(topology.folder / "side-effects")

    def run(self) -> list[str]:
        """Returns what was wrong."""
        whole = self._options.minutes * 60
        self._load(work.CALM, whole * WARM_UP, "warm-up", self._options.clients * 2)
        fresh = self._rest()
        self._storm(whole * STORM)
        # Those that were started anew in the storm have to warm up too.
        self._load(work.CALM, whole * CALM / 2, "calm", self._options.clients)
        survived = self._rest()
        self._load(work.CALM, whole * CALM / 2, "calm", self._options.clients)
        rested = self._rest()

        lines = {
            "from the warm-up to the end": list(growth.totals(fresh, rested)),
            "those that lived from the warm-up to the end": list(growth.survivors(fresh, rested)),
            "those that lived through the last calm": list(growth.survivors(survived, rested)),
        }
        self._report(lines)
        wrong = [*self._ledger.wrong, *self._runs()]
        for title, some in lines.items():
            wrong += [
                f"{title}: {line.what}: {line.before:.1f} → {line.after:.1f}"
                for line in some
                if line.wrong
            ]
        return wrong

    def _load(self, kinds: dict[work.Work, int], seconds: float, name: str, clients: int) -> None:
        with self._clients(kinds, seconds, name, clients):
            time.sleep(seconds)

    def _storm(self, seconds: float) -> None:
        """Load and blows; ends when what was begun is over and everything is healed.

        The blows are struck by the main thread: services end with the thread that started them.
        """
        self._ledger.breaking = True
        with self._clients(work.STORMY, seconds, "storm", self._options.clients):
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                time.sleep(self._draw.uniform(*self._options.pause))
                blow = self._blows.strike()
                self._struck[blow] += 1
                print(f"  {time.strftime('%H:%M:%S')} {blow}", flush=True)
        self._topology.await_ready()
        self._at_full_strength()
        self._ledger.breaking = False

    def _clients(
        self, kinds: dict[work.Work, int], seconds: float, name: str, clients: int
    ) -> Load:
        print(f"{time.strftime('%H:%M:%S')} {name}: {seconds:.0f} s", flush=True)
        seed = f"{self._options.seed} {name}"
        folder = self._topology.folder
        return Load(self._topology.url, self._ledger, folder, clients, kinds, seed)

    def _at_full_strength(self) -> None:
        topology = self._topology
        _eventually(lambda: topology.free_slots() == topology.slots, "every slot is free", 90)

    def _rest(self) -> Rest:
        """Waits until nothing is left to do or to forget, and looks."""
        topology = self._topology
        invariants.check(topology, self._effects.read(), _eventually)
        children = topology.workers * (int(topology.environment["WORKER_COUNT"]) + 2)
        _eventually(
            lambda: len(topology.processes("child")) == children, "spares and inspectors are there"
        )
        time.sleep(float(topology.environment["STREAM_TTL_SECONDS"]) + 5)
        return Rest.of(topology)

    def _runs(self) -> Iterator[str]:
        """What is wrong with the runs that were accepted."""
        rows = self._topology.query(
            "SELECT run_id::text, target, crashes FROM moves WHERE target = ANY(%s)",
            [str(status) for status in TERMINAL],
        )
        ends: dict[str, list[tuple[str, int]]] = {}
        for row in rows:
            ends.setdefault(row["run_id"], []).append((row["target"], row["crashes"]))
        allowed = {kind.__name__: statuses for kind, statuses in work.ENDS.items()}
        for run_id, kind in self._ledger.accepted.items():
            match ends.get(run_id, []):
                case [(status, crashes)]:
                    may = allowed.get(kind, {"success"})
                    unlucky = status == "error" and crashes > work.RETRIES
                    if status not in may and not unlucky:
                        yield f"{kind}: run {run_id} ended as {status} after {crashes} crashes"
                case others:
                    yield f"{kind}: run {run_id} has {len(others)} ends: {others}"
        yield from self._lines()

    def _lines(self) -> Iterator[str]:
        starts = {
            row["run_id"]: row["place"]
            for row in self._topology.query(
                "SELECT run_id::text, min(place) AS place FROM moves WHERE target = 'running'"
                " GROUP BY run_id"
            )
        }
        for line in self._ledger.lines:
            places = [starts[run_id] for run_id in line]
            if places != sorted(places):
                yield f"enqueued: runs {line} started in another order"

    def _report(self, tables: dict[str, list[Line]]) -> None:
        print("\n| work | runs accepted | met |\n|---|---|---|")
        accepted = Counter(self._ledger.accepted.values())
        for kind in work.STORMY:
            name = kind.__name__
            met = ", ".join(
                f"{what} {n}" for (one, what), n in sorted(self._ledger.met.items()) if one == name
            )
            print(f"| {name} | {accepted[name]} | {met} |")
        print("\n| blow | times |\n|---|---|")
        for blow, times in sorted(self._struck.items()):
            print(f"| {blow} | {times} |")
        for title, lines in tables.items():
            print(f"\n| {title} | before | after | |\n|---|---|---|---|")
            for line in lines:
                verdict = "GROWN" if line.wrong else ""
                print(f"| {line.what} | {line.before:.1f} | {line.after:.1f} | {verdict} |")
        print(f"\n{len(self._ledger.accepted)} runs accepted, {sum(self._struck.values())} blows")


def main() -> int:
    """Reads the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", default=time.strftime("%Y%m%d%H%M%S"), help="of all choices")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument(
        "--pause", type=float, nargs=2, default=(3.0, 10.0), help="seconds between blows"
    )
    parser.add_argument("--keep", action="store_true", help="leave logs and data behind")
    parser.add_argument(
        "settings", nargs="*", metavar="NAME=VALUE", help="settings of the topology"
    )
    options = parser.parse_args()
    # The SDK tells of each reconnect.
    warnings.filterwarnings("ignore", category=UserWarning, module=r"langgraph_sdk|tests\.soak")
    settings = SETTINGS | dict(setting.split("=", 1) for setting in options.settings)

    folder = Path(tempfile.mkdtemp(prefix="cb-"))
    print(f"seed {options.seed}, {folder}", flush=True)
    (folder / "topology").mkdir()
    postgres, valkey = own_postgres(folder), own_valkey(folder)
    wrong = ["it was broken off"]
    try:
        migrate.upgrade(postgres.url)
        invariants.watch(postgres.url)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        topology = Topology(folder / "topology", port, postgres.url, f"{valkey.url}/0", settings)
        topology.start()
        try:
            wrong = Soak(topology, postgres, valkey, options).run()
        finally:
            topology.stop()
    except AssertionError as error:
        wrong = [f"an invariant is broken: {error}"]
    finally:
        valkey.stop()
        postgres.stop()
        if not (options.keep or wrong):
            shutil.rmtree(folder, ignore_errors=True)
    for what, times in Counter(wrong).items():
        print(f"WRONG {what}" + (f" ({times} times)" if times > 1 else ""))
    print("nothing is wrong" if not wrong else f"{len(wrong)} things are wrong, see {folder}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
