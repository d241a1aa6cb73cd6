"""A worker in a process of its own, as ``callboard worker`` starts one."""

import json
import sys

from actors.settings import WorkerSettings
from actors.worker import Worker
from persistence.settings import DatabaseSettings

if __name__ == "__main__":
    sys.exit(Worker(WorkerSettings(), DatabaseSettings(), json.loads(sys.argv[1])).run())
