"""``auth`` and ``http`` of langgraph.json: what is read and loaded, and what refuses to start."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from callboard import user_code
from callboard.config import ConfigError, Project, load_project
from callboard.errors import StartError
from gateway.auth.access import Access
from gateway.auth.cache import CacheOptions

AUTH = """
import os
from langgraph_sdk import Auth
auth = Auth()
count = 0
@auth.authenticate
async def authenticate(authorization):
    return os.environ["TEST_USER_CODE"]
"""

Write = Callable[..., Project]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Write]:
    """Writes a project with these sections and files, and reads it; leaves no trace of its code."""
    path, modules, environment = list(sys.path), set(sys.modules), dict(os.environ)

    def write(sections: dict[str, Any], **files: str) -> Project:
        for name, text in {"graph": "raise SystemExit('a graph was imported')", **files}.items():
            (tmp_path / f"{name}.py").write_text(text)
        content = {"graphs": {"agent": "./graph.py:graph"}, **sections}
        (tmp_path / "langgraph.json").write_text(json.dumps(content))
        return load_project(tmp_path)

    yield write
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)


def test_nothing_is_imported_for_a_project_without_either(project: Write) -> None:
    found = project({"env": {"TEST_USER_CODE": "x"}})
    assert user_code.load(found) == user_code.UserCode()
    assert str(found.root) not in sys.path
    assert "TEST_USER_CODE" not in os.environ


async def test_both_are_loaded_with_the_projects_environment_and_folders(project: Write) -> None:
    found = project(
        {
            "auth": {"path": "./security.py:auth"},
            "http": {"app": "webapp:app"},
            "env": {"TEST_USER_CODE": "ann"},
        },
        security="import helper_of_ours\n" + AUTH,
        helper_of_ours="",
        webapp="import helper_of_ours\nasync def app(scope, receive, send): ...",
    )
    code = user_code.load(found)
    assert isinstance(code.access, Access)
    assert callable(code.custom)
    assert "graph" not in sys.modules
    assert os.environ["TEST_USER_CODE"] == "ann"
    assert user_code.load(found).custom is code.custom  # once, however often it is asked for


@pytest.mark.parametrize(
    ("target", "text", "said"),
    [
        ("./security.py:auth", "import not_there_at_all", "No module named 'not_there_at_all'"),
        (
            "./security.py:auth",
            "raise RuntimeError('no key')",
            "RuntimeError: no key (security.py:1",
        ),
        ("./security.py:auth", "import sys; sys.exit(3)", "sys.exit(3)"),
        ("./security.py:auth", "auth = (", "SyntaxError"),
        ("./security.py:auth", "", "has no variable 'auth'"),
        ("./security.py:auth", "auth = 5", "expected a langgraph_sdk.Auth, got int"),
        (
            "./security.py:auth",
            "from langgraph_sdk import Auth; auth = Auth()",
            "no @auth.authenticate handler",
        ),
        ("not_there_at_all:auth", "", "No module named 'not_there_at_all'"),
    ],
)
def test_broken_auth_refuses_to_start(project: Write, target: str, text: str, said: str) -> None:
    found = project({"auth": {"path": target}}, security=text)
    with pytest.raises(StartError) as refused:
        user_code.load(found)
    sentence = str(refused.value)
    assert sentence.startswith(f"{found.path}: auth.path: '{target}' cannot be used: ")
    assert said in sentence
    assert "\n" not in sentence


def test_whom_it_knows_is_kept_as_the_project_says(project: Write) -> None:
    for section, is_kept in (({}, False), ({"cache": {"cache_keys": ["x-tenant"]}}, True)):
        found = project({"auth": {"path": "./security.py:auth", **section}}, security=AUTH)
        access = user_code.load(found).access
        assert access is not None
        assert (access._cache is not None) == is_kept


def test_what_is_no_application_refuses_to_start(project: Write) -> None:
    found = project({"http": {"app": "./webapp.py:app"}}, webapp="app = 5")
    with pytest.raises(StartError, match=r"http\.app: .*expected an ASGI application, got int"):
        user_code.load(found)


def test_names_of_ours_are_refused(project: Write) -> None:
    found = project({"auth": {"path": "./security.py:auth"}}, security=AUTH, gateway="")
    with pytest.raises(StartError, match="the module 'gateway' has the name of one of ours"):
        user_code.load(found)


@pytest.mark.parametrize(
    ("sections", "key", "expected"),
    [
        ({"auth": {"disable_studio_auth": True}}, "auth.path", "expected"),
        ({"auth": {"path": 5}}, "auth.path", "5"),
        ({"auth": {"path": "./nothing.py:auth"}}, "auth.path", "no such file"),
        ({"auth": {"path": "graph.py"}}, "auth.path", "variable"),
        (
            {"auth": {"path": "m:auth", "disable_studio_auth": "yes"}},
            "auth.disable_studio_auth",
            "true or false",
        ),
        ({"auth": {"path": "m:auth", "openapi": []}}, "auth.openapi", "an object"),
        ({"auth": []}, "auth", "an object"),
        ({"auth": {"path": "m:auth", "cache": 5}}, "auth.cache", "expected an object, got 5"),
        ({"auth": {"path": "m:auth", "cache": {"max_size": 0}}}, "auth.cache.max_size", "1"),
        ({"http": {"app": "./nothing.py:app"}}, "http.app", "no such file"),
        ({"http": {"disable_store": "yes"}}, "http.disable_store", "boolean"),
        ({"http": {"middleware_order": "last"}}, "http.middleware_order", "auth_first"),
        ({"http": {"mount_prefix": "api"}}, "http.mount_prefix", 'a path like "/api"'),
        ({"http": {"cors": []}}, "http.cors", "expected an object, got a list"),
        ({"http": {"logging_headers": ["x-*"]}}, "http.logging_headers", "expected an object, got"),
        ({"http": {"cors": {"allow_origins": "*"}}}, "http.cors.allow_origins", "list"),
        ({"http": {"cors": {"allow_origin_regex": "("}}}, "http.cors.allow_origin_regex", "("),
        ({"http": {"cors": {"max_age": -1}}}, "http.cors.max_age", "greater"),
        (
            {"http": {"configurable_headers": {"includes": [5]}}},
            "http.configurable_headers.includes.0",
            "string",
        ),
    ],
)
def test_what_has_the_wrong_form_refuses_to_start_and_is_named(
    project: Write, sections: dict[str, Any], key: str, expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        project(sections)
    assert f"langgraph.json: {key}: " in str(refused.value)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("switches", "studio"),
    [
        ({}, "here"),
        ({"disable_studio_auth": True}, "nobody"),
        ({"disable_studio_auth": False}, "anywhere"),
    ],
)
def test_studio_is_believed_as_far_as_the_project_says(
    project: Write, switches: dict[str, bool], studio: str
) -> None:
    auth = project({"auth": {"path": "m:auth", **switches}}).auth
    assert auth is not None
    assert auth.studio == studio


def test_what_is_not_known_is_a_warning(project: Write) -> None:
    found = project(
        {
            "auth": {
                "path": "m:auth",
                "cache": {"odd": 1, "ttl_seconds": 9, "cache_keys": ["a"]},
                "odd": 1,
            },
            "ui": {"agent": "./ui.tsx"},
            "ui_config": {"shared": ["react"]},
            "http": {
                "logging_headers": {"includes": ["x-*"], "odd": 1},
                "odd": 1,
                "cors": {"odd": 1, "allow_credentials": True},
                "configurable_headers": {"include": ["x-*"], "exclude": None},
                "disable_mcp": True,
            },
        }
    )
    warned = {text.removeprefix(f"{found.path}: ").partition(": ")[0] for text in found.warnings}
    assert any("auth.odd: unknown key" in text for text in found.warnings)
    assert warned == {
        *("auth.cache.odd", "auth.odd", "http.logging_headers.odd", "http.odd", "http.cors.odd"),
        *("ui", "ui_config"),
        "http.cors.allow_credentials",
    }
    assert found.http.configurable_headers.includes == ["x-*"]
    assert found.http.logging_headers.includes == ["x-*"]
    assert found.http.disable_mcp
    assert found.auth is not None
    assert found.auth.cache == CacheOptions(cache_keys=["a"], ttl_seconds=9)


def test_a_cache_that_names_no_headers_keeps_nobody(project: Write) -> None:
    found = project({"auth": {"path": "m:auth", "cache": {"ttl_seconds": 9}}})
    assert found.auth is not None
    assert found.auth.cache is None
    assert "auth.cache: names no cache_keys" in found.warnings[0]
