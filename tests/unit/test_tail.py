"""Log files are followed: only what is new, line by line, over rotation."""

from pathlib import Path

from callboard.tail import Tail, last_lines


def test_only_new_and_complete_lines_are_shown(tmp_path: Path) -> None:
    old, new = tmp_path / "gateway-0.log", tmp_path / "worker-0.log"
    old.write_text("before\n")
    (tmp_path / "postgres.log").write_text("")
    tail = Tail(tmp_path, shown=lambda part: part != "postgres")
    with old.open("a") as file:
        file.write("after\nhalf a ")
    new.write_text("first\n")
    (tmp_path / "postgres.log").write_text("not shown\n")
    assert list(tail.lines()) == ["gateway-0   after", "worker-0    first"]
    with old.open("a") as file:
        file.write("line\n")
    assert list(tail.lines()) == ["gateway-0   half a line"]
    assert list(tail.lines()) == []


def test_a_rotated_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_text("a long line before the rotation\n")
    tail = Tail(tmp_path, shown=lambda part: True)
    path.rename(tmp_path / "worker-0.log.1")
    path.write_text("after\n")
    assert list(tail.lines()) == ["worker-0    after"]


def test_the_end_of_a_log_is_quoted(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    path.write_text("".join(f"{n}\n" for n in range(100_000)))
    assert last_lines(path, 2) == ["99998", "99999"]
    assert last_lines(tmp_path / "gone.log", 2) == []
