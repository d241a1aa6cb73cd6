"""The gateway answers what its OpenAPI document says, whatever it is sent: never a 5xx."""

import os
from typing import Any, Protocol

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

EXAMPLES = int(os.environ.get("OPENAPI_EXAMPLES", "4"))
"""Requests of each kind to each operation; a long run by hand sets it high, with another seed."""
SEED = int(os.environ.get("OPENAPI_SEED", "0"))
SECONDS = 20.0
ENDLESS = {"/threads/{thread_id}/stream", "/threads/{thread_id}/stream/events"}
"""Streams that never end by themselves: a look at their beginning is enough."""

ENDPOINTS = [endpoint for routes in ROUTES for endpoint in routes.endpoints]
SCHEMA = schemathesis.openapi.from_dict(describe(ENDPOINTS, ["chat"], "0"))
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]
KINDS = {"valid": GenerationMode.POSITIVE, "broken": GenerationMode.NEGATIVE}
CHECKS = [
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_headers_conformance,
    openapi_checks.response_schema_conformance,
]


def can_be_broken(operation: APIOperation) -> bool:
    """Whether it takes anything but plain text, which is always of the right form."""
    taken = operation.definition.raw
    plain = all(parameter["schema"] == {"type": "string"} for parameter in taken["parameters"])
    return "requestBody" in taken or not plain


CASES = [
    pytest.param(operation, KINDS[kind], id=f"{operation.label} {kind}")
    for operation in OPERATIONS
    for kind in KINDS
    if kind == "valid" or can_be_broken(operation)
]


class Served(Protocol):
    url: str


class Session:
    """Sends cases, and makes the things that they are about."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = requests.Session()

    def post(self, path: str, body: Any) -> Any:
        response = self.http.post(self.url + path, json=body, timeout=SECONDS)
        response.raise_for_status()
        return response.json()

    def make(self, names: set[str]) -> dict[str, str]:
        """Ids of things that exist, for those of the names that can be made."""
        made: dict[str, str] = {}
        if names & {"thread_id", "run_id"}:
            thread = self.post("/threads", {"metadata": {"graph_id": "chat"}})
            made["thread_id"] = thread["thread_id"]
        if "run_id" in names:
            run = {"assistant_id": "chat", "input": {"messages": "What is 1 + 1?"}}
            made["run_id"] = self.post(f"/threads/{made['thread_id']}/runs", run)["run_id"]
        if names & {"assistant_id", "assistant"}:
            assistant = self.post("/assistants", {"graph_id": "chat"})
            made |= dict.fromkeys(("assistant_id", "assistant"), assistant["assistant_id"])
        return {name: made[name] for name in names & set(made)}

    def send(self, case: Case) -> None:
        """Sends a case and checks its answer. Streams are read for a while."""
        if isinstance(case.body, dict) and isinstance(case.body.get("after_seconds"), int | float):
            case.body["after_seconds"] = 0  # nobody waits for years
        seconds = 0.5 if case.path in ENDLESS else SECONDS
        case.call_and_validate(base_url=self.url, session=self.http, checks=CHECKS, timeout=seconds)


@pytest.fixture(scope="module")
def session(callboard: Served) -> Session:
    return Session(callboard.url)


@pytest.mark.topology
@pytest.mark.parametrize(("operation", "kind"), CASES)
def test_only_declared_answers(
    operation: APIOperation, kind: GenerationMode, session: Session
) -> None:
    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
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
