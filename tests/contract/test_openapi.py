"""The gateway answers what its OpenAPI document says, whatever it is sent: never a 5xx.

It is asked over the plain examples, and over a project that has what a project can have: callers
that are authenticated, an index, an application of its own with middleware, and a prefix.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, checks
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi import checks as openapi_checks

from gateway.app import ROUTES
from gateway.openapi import describe
from gateway.routing import PUBLIC
from tests.contract.conftest import Callboard

EXAMPLES = int(os.environ.get("OPENAPI_EXAMPLES", "4"))
"""Requests of each kind to each operation; a long run by hand sets it high, with another seed."""
SEED = int(os.environ.get("OPENAPI_SEED", "0"))
SECONDS = 20.0
ENDLESS = {"/threads/{thread_id}/stream", "/threads/{thread_id}/stream/events"}
"""Streams that never end by themselves: a look at their beginning is enough."""

WHOLE = Path(__file__).parents[1] / "graphs" / "whole"
PREFIX = "/api"
ENDPOINTS = [endpoint for routes in ROUTES for endpoint in routes.endpoints]
PUBLIC_PATHS = {endpoint.path for endpoint in ENDPOINTS if endpoint.on == PUBLIC}
KINDS = {"valid": GenerationMode.POSITIVE, "broken": GenerationMode.NEGATIVE}
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
]


@dataclass(frozen=True)
class Caller:
    """Who asks which project.

    refused: the statuses that all can have that is not public; none: what is asked decides.
    """

    project: str
    examples: int
    kinds: tuple[str, ...] = tuple(KINDS)
    token: str = ""
    refused: frozenset[int] = frozenset()


CALLERS = {
    "anybody": Caller("examples", EXAMPLES),
    "ann": Caller("whole", -(-EXAMPLES // 2), token="token-ann"),
    # A request's form is checked before the right to it.
    "stranger": Caller(
        "whole", -(-EXAMPLES // 4), ("valid",), "token-stranger", frozenset({403, 400, 422})
    ),
    "nobody": Caller("whole", -(-EXAMPLES // 4), refused=frozenset({401})),
}


def operations(caller: Caller) -> list[APIOperation]:
    document = describe(ENDPOINTS, ["chat"], "0", asks_callers=caller.project == "whole")
    return [found.ok() for found in schemathesis.openapi.from_dict(document).get_all_operations()]


def can_be_broken(operation: APIOperation) -> bool:
    """Whether it takes anything but plain text, which is always of the right form."""
    taken = operation.definition.raw
    plain = all(parameter["schema"] == {"type": "string"} for parameter in taken["parameters"])
    return "requestBody" in taken or not plain


CASES = [
    pytest.param(operation, KINDS[kind], name, id=f"{operation.label} {kind} by {name}")
    for name, caller in CALLERS.items()
    for operation in operations(caller)
    for kind in caller.kinds
    if kind == "valid" or can_be_broken(operation)
]


class Session:
    """Sends cases as somebody, and makes the things that they are about."""

    def __init__(self, url: str, caller: Caller) -> None:
        self.url = url
        self.caller = caller
        self.http = requests.Session()
        if caller.token:
            self.http.headers["Authorization"] = f"Bearer {caller.token}"

    def post(self, path: str, body: Any) -> Any:
        response = self.http.post(self.url + path, json=body, timeout=SECONDS)
        response.raise_for_status()
        return response.json()

    def make(self, names: set[str]) -> dict[str, str]:
        """Ids of things that exist, for those of the names that can be made."""
        made: dict[str, str] = {}
        if self.caller.refused:
            return made
        if names & {"thread_id", "run_id"}:
            thread = self.post("/threads", {"metadata": {"graph_id": "chat"}})
            made["thread_id"] = thread["thread_id"]
        if "run_id" in names:
            run = {"assistant_id": "chat", "input": {"messages": "What is 1 + 1?"}}
            made["run_id"] = self.post(f"/threads/{made['thread_id']}/runs", run)["run_id"]
        if "cron_id" in names:
            cron = {"assistant_id": "chat", "schedule": "0 0 1 1 *"}
            made["cron_id"] = self.post("/runs/crons", cron)["cron_id"]
        if names & {"assistant_id", "assistant"}:
            assistant = self.post("/assistants", {"graph_id": "chat"})
            made |= dict.fromkeys(("assistant_id", "assistant"), assistant["assistant_id"])
        return {name: made[name] for name in names & set(made)}

    def send(self, case: Case) -> None:
        """Sends a case and checks its answer. Streams are read for a while."""
        if isinstance(case.body, dict) and isinstance(case.body.get("after_seconds"), int | float):
            case.body["after_seconds"] = 0  # nobody waits for years
        seconds = 0.5 if case.path in ENDLESS else SECONDS
        answer = case.call_and_validate(
            base_url=self.url, session=self.http, checks=CHECKS, timeout=seconds
        )
        if self.caller.refused and case.path not in PUBLIC_PATHS:
            assert answer.status_code in self.caller.refused
        if self.caller.project == "whole":
            assert answer.headers["x-mark"] == ["of the lifespan"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callboard]:
    """A project that has every section."""
    data = tmp_path_factory.mktemp("whole")
    small = {"WORKER_COUNT": "1", "CALLBOARD_GATEWAYS": "1"}
    running = Callboard("up", "--config", str(WHOLE), "--data", str(data), **small)
    yield running
    assert running.stop() == 0


@pytest.fixture
def session(caller: str, request: pytest.FixtureRequest) -> Session:
    who = CALLERS[caller]
    if who.project == "whole":
        return Session(request.getfixturevalue("whole").url, who)
    return Session(request.getfixturevalue("callboard").url, who)


@pytest.mark.topology
@pytest.mark.parametrize(("operation", "kind", "caller"), CASES)
def test_only_declared_answers(
    operation: APIOperation, kind: GenerationMode, session: Session
) -> None:
    @seed(SEED)
    @settings(
        max_examples=session.caller.examples,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(kind), st.booleans())
    def check(case: Case, is_about_something: bool) -> None:
        if is_about_something and case.path_parameters:
            case.path_parameters.update(session.make(set(case.path_parameters)))
        session.send(case)

    check()


@pytest.mark.topology
def test_the_project_serves_what_is_described(whole: Callboard) -> None:
    """So that no route is left out, and what the project adds is there beside it."""
    document = requests.get(f"{whole.url}/openapi.json", timeout=SECONDS).json()
    assert document["servers"] == [{"url": PREFIX}]
    assert set(document["paths"]) == {endpoint.path for endpoint in ENDPOINTS}
    ann = {"Authorization": "Bearer token-ann"}
    mine = requests.get(f"{whole.url}/mine", headers=ann, timeout=SECONDS)
    assert mine.json() == {"user": "ann", "mark": "of the lifespan"}
    assert requests.get(f"{whole.url}/mine", timeout=SECONDS).status_code == 401
