"""``python -m bench server|saver|threads|recovery``: see README.md for how to read the figures."""

import argparse
import asyncio
import os

SCENARIOS = ["idle", "ends", "throughput", "burning", "share", "cancel"]


def main() -> None:
    """Reads the command line and runs the scenarios it asks for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    which = parser.add_subparsers(dest="which", required=True)

    server = which.add_parser("server", help="scenarios against a server that serves bench/graphs")
    server.add_argument("--url", default="http://127.0.0.1:2024")
    server.add_argument("--api-key", help="sent as x-api-key")
    server.add_argument("--only", action="append", choices=SCENARIOS)
    server.add_argument("--runs", type=int, default=640, help="runs of the throughput scenario")
    server.add_argument("--concurrency", type=int, default=32)
    server.add_argument("--samples", type=int, default=100, help="samples of the idle scenario")
    server.add_argument(
        "--cores", type=int, default=os.cpu_count(), help="cores of the server's machine"
    )

    saver = which.add_parser("saver", help="LangGraph's stock Postgres saver against ours")
    saver.add_argument(
        "--database-url", required=True, help="a server on which a database may be created"
    )
    saver.add_argument("--rounds", type=int, default=5)
    saver.add_argument("--runs", type=int, default=100, help="runs of each saver in each round")
    saver.add_argument("--concurrency", type=int, default=8)
    saver.add_argument("--durability", default="async", choices=["sync", "async", "exit"])

    threads = which.add_parser("threads", help="searches as the number of threads grows")
    threads.add_argument(
        "--database-url", required=True, help="a server on which a database may be created"
    )
    threads.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    threads.add_argument("--samples", type=int, default=7, help="of each search at each size")
    threads.add_argument("--explain", action="store_true", help="print the plans at the last size")

    recovery = which.add_parser("recovery", help="parts die; how long until work goes on")
    recovery.add_argument("--rounds", type=int, default=3)

    options = parser.parse_args()
    # Imported here: the server's scenarios need no database driver, and the saver's no HTTP client.
    if options.which == "server":
        from bench import server as scenarios

        asyncio.run(
            scenarios.measure(
                scenarios.Target(
                    url=options.url,
                    api_key=options.api_key,
                    runs=options.runs,
                    concurrency=options.concurrency,
                    samples=options.samples,
                    cores=options.cores,
                ),
                options.only or SCENARIOS,
            )
        )
    elif options.which == "threads":
        from bench import threads as searches

        asyncio.run(
            searches.measure(
                options.database_url,
                sizes=sorted(options.sizes),
                samples=options.samples,
                explain=options.explain,
            )
        )
    elif options.which == "recovery":
        from bench import recovery as blows

        blows.run(options.rounds)
    else:
        from bench import saver as comparison

        asyncio.run(
            comparison.measure(
                options.database_url,
                rounds=options.rounds,
                runs=options.runs,
                concurrency=options.concurrency,
                durability=options.durability,
            )
        )


main()
