"""What is printed into a pipe that nobody reads."""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from actors.child import outlet as outlets
from actors.child.outlet import Outlet


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def test_a_reader_that_takes_nothing_holds_nobody_up_and_learns_what_it_missed(
    pipe: tuple[int, int],
) -> None:
    reader, writer = pipe
    outlet = Outlet(writer)
    line = b"x" * 999 + b"\n"
    for _ in range(10_000):  # a pipe holds 64 KB: a write that waited would wait for ever
        assert outlet.write(line) == len(line)
    taken = os.read(reader, 1 << 20)
    assert taken
    assert outlet.write(b"again\n") == 6
    left_out = 10_000 * len(line) - len(taken)
    note = b"[%d bytes were left out: nobody took them]\n" % left_out
    assert os.read(reader, 1 << 20) == note + b"again\n"


def test_a_slow_reader_gets_everything(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlets, "_PATIENCE_SECONDS", 60.0)  # for a machine that hardly gets to it
    reader, writer = pipe
    outlet = Outlet(writer)
    whole = b"".join(b"line %d\n" % n for n in range(100_000))

    def read() -> bytes:
        taken = b""
        while len(taken) < len(whole):
            taken += os.read(reader, 4096)
        return taken

    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(read)
        for line in whole.splitlines(keepends=True):
            outlet.write(line)
        assert taken.result(60) == whole


def test_others_write_to_the_descriptor_as_ever(pipe: tuple[int, int]) -> None:
    """As programs that user code starts: they wait for the reader."""
    reader, writer = pipe
    outlet = Outlet(writer)
    while True:
        outlet.write(b"x" * 4096)
        if outlet._is_deaf:
            break
    other = threading.Thread(target=os.write, args=(outlet.fileno(), b"y"))
    other.start()
    taken = b""
    while not taken.endswith(b"y"):
        taken += os.read(reader, 4096)
    other.join()


def test_who_has_hung_up_is_an_error(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    outlet = Outlet(writer)
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        outlet.write(b"anybody?")
