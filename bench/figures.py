"""Numbers for people: percentiles, and a table."""

import math
from collections.abc import Iterable, Sequence


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least ``share`` (0 to 1) of all samples do not exceed."""
    ranked = sorted(samples)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]


def milliseconds(samples: Sequence[float]) -> str:
    """Median, 99th percentile and maximum of samples in seconds, as text in milliseconds."""
    p50, p99 = (1000 * percentile(samples, share) for share in (0.5, 0.99))
    return f"p50 {p50:.1f}   p99 {p99:.1f}   max {1000 * max(samples):.1f} ms   n {len(samples)}"


def table(rows: Iterable[Sequence[str]]) -> str:
    """The rows as lines with aligned columns."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
