"""The inherited socket to the worker: read by one thread, written by another.

Writing has a thread of its own because a state may be 100 MB and the worker may be slow: ``send``
never waits, neither the loop nor the control thread, and frames never mix.
"""

import queue
import select
import socket
import threading
from time import monotonic

from actors.child.protocol import Decoder, Frame, encode


class Pipe:
    """Frames to and from the worker."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._decoder = Decoder()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="pipe-writer", daemon=True)
        self._writer.start()

    def receive(self, timeout: float) -> list[Frame] | None:
        """The frames that came within ``timeout`` seconds, maybe none; None if the worker is gone.

        Raises BrokenFrame when the two sides are out of step.
        """
        if not self._poll.poll(timeout * 1000):
            return []
        try:
            data = self._socket.recv(1 << 20)
        except OSError:
            return None
        return list(self._decoder.feed(data)) if data else None

    def send(self, frame: Frame) -> None:
        """Puts the frame on its way; from any thread. What a gone worker misses is lost."""
        self._outgoing.put(encode(frame))

    def close(self, timeout: float) -> None:
        """Returns when all frames are written, at the latest after ``timeout`` seconds."""
        self._outgoing.put(None)
        self._writer.join(timeout)

    def _write(self) -> None:
        while (data := self._outgoing.get()) is not None:
            try:
                self._socket.sendall(data)
            except OSError:  # the control thread notices the same and ends the process
                return


def first_frames(pipe: Pipe, timeout: float) -> list[Frame] | None:
    """The frames that are there first, waiting for one; None when none comes in time."""
    deadline = monotonic() + timeout
    while (left := deadline - monotonic()) > 0:
        frames = pipe.receive(left)
        if frames is None or frames:
            return frames
    return None
