"""The runner sends what the reference server sends, for the same graphs and requests."""

import json
import os
from typing import Any

import pytest

from tests.actors import golden_runs


@pytest.mark.parametrize("scenario", golden_runs.SCENARIOS, ids=lambda scenario: scenario["name"])
async def test_the_transcript_is_the_reference_servers(scenario: dict[str, Any]) -> None:
    file = golden_runs.FOLDER / f"{scenario['name']}.json"
    if address := os.environ.get("RECORD_GOLDEN_FROM"):
        transcript = golden_runs.normal(golden_runs.recorded(scenario, address))
        file.write_text(json.dumps(transcript, indent=1) + "\n")
    expected = json.loads(file.read_text())
    found = golden_runs.normal(await golden_runs.executed(scenario))
    for part in ("runs", "state", "state_inside", "history"):
        assert found[part] == expected[part]
