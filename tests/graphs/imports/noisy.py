"""Takes long to import, prints all the while, and leaves a thread behind."""

import os
import threading
import time

from good import graph

for _ in range(40):
    print("still importing " * 1000, flush=True)
    os.write(1, b"\0\xff\n" * 1000)
    time.sleep(float(os.environ.get("SLOW_IMPORT_SECONDS", "0")) / 40)
threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()

__all__ = ["graph"]
