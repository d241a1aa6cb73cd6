"""The sections ``webhooks`` and ``checkpointer`` of ``langgraph.json``."""

import json
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from actors.webhook_policy import WebhookPolicy
from callboard.config import ConfigError, Project, load_project
from persistence.ttl import Ttl, TtlStrategy


def read(folder: Path, **sections: Any) -> Project:
    (folder / "agent.py").touch()
    content = {"graphs": {"agent": "./agent.py:graph"}, **sections}
    (folder / "langgraph.json").write_text(json.dumps(content))
    return load_project(folder)


def test_without_sections_nothing_expires_and_anything_public_is_told(tmp_path: Path) -> None:
    project = read(tmp_path)
    assert project.thread_ttl is None
    assert project.webhooks == WebhookPolicy()


def test_threads_get_a_lifetime(tmp_path: Path) -> None:
    ttl = {"strategy": "keep_latest", "default_ttl": 43200, "sweep_interval_minutes": 60}
    project = read(tmp_path, checkpointer={"ttl": ttl})
    assert project.thread_ttl == Ttl(43200, TtlStrategy.KEEP_LATEST)
    assert project.warnings == ()
    assert read(tmp_path, checkpointer={"ttl": {"strategy": "delete"}}).thread_ttl is None
    assert read(tmp_path, checkpointer={"ttl": {"default_ttl": 5}}).thread_ttl == Ttl(5)
    warned = read(tmp_path, checkpointer={"path": "./own.py:saver"}).warnings
    assert any("checkpointer.path" in warning for warning in warned)


def test_webhooks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LG_WEBHOOK_TOKEN", "t")
    policy = read(
        tmp_path,
        env={"LG_WEBHOOK_OWN": "o"},
        webhooks={
            "headers": {
                "Authorization": "Bearer ${{ env.LG_WEBHOOK_TOKEN }}/${{env.LG_WEBHOOK_OWN}}"
            },
            "url": {
                "allowed_domains": ["*.corp.example"],
                "allowed_ports": [443, 8443],
                "max_url_length": 100,
                "allowed_networks": ["10.1.0.0/16"],
            },
        },
    ).webhooks
    assert policy == WebhookPolicy(
        require_https=True,  # as soon as there is a section
        allowed_domains=("*.corp.example",),
        allowed_ports=frozenset({443, 8443}),
        max_url_length=100,
        allowed_networks=(ip_network("10.1.0.0/16"),),
        headers={"Authorization": "Bearer t/o"},
    )
    assert "Bearer" not in repr(policy)


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"checkpointer": {"ttl": 5}}, ["checkpointer.ttl", "5", "an object"]),
        ({"checkpointer": {"ttl": {"default_ttl": 0}}}, ["checkpointer.ttl.default_ttl", "0"]),
        ({"checkpointer": {"ttl": {"default_ttl": True}}}, ["default_ttl", "true"]),
        ({"checkpointer": {"ttl": {"default_ttl": 1e300}}}, ["default_ttl"]),
        ({"checkpointer": {"ttl": {"strategy": "x"}}}, ["checkpointer.ttl.strategy", '"x"']),
        ({"webhooks": {"url": []}}, ["webhooks.url", "a list"]),
        ({"webhooks": {"url": {"require_https": 1}}}, ["require_https", "true or false"]),
        ({"webhooks": {"url": {"allowed_domains": "x"}}}, ["allowed_domains", '"x"']),
        ({"webhooks": {"url": {"allowed_ports": ["443"]}}}, ["allowed_ports"]),
        ({"webhooks": {"url": {"max_url_length": 0}}}, ["max_url_length", "0"]),
        ({"webhooks": {"url": {"allowed_networks": ["10.1.0.1/16"]}}}, ["10.1.0.1/16"]),
        ({"webhooks": {"url": {"disable_loopback": False}}}, ["disable_loopback", "false"]),
        ({"webhooks": {"headers": {"A": "${{ env.HOME }}"}}}, ["headers.A", "HOME", "LG_WEBHOOK_"]),
        ({"webhooks": {"headers": {"A": "${{ env.LG_WEBHOOK_NONE }}"}}}, ["LG_WEBHOOK_NONE"]),
        ({"webhooks": {"headers": {"A": "a\r\nB: c"}}}, ["webhooks.headers.A"]),
        ({"webhooks": {"headers": {"A B": "x"}}}, ["webhooks.headers", "names"]),
        ({"webhooks": {"headers": {"A": 1}}}, ["webhooks.headers.A", "1"]),
        ({"webhooks": {"env_prefix": ""}}, ["webhooks.env_prefix"]),
    ],
)
def test_broken_sections_are_refused_by_name(
    tmp_path: Path, sections: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, **sections)
    for word in words:
        assert word in str(caught.value)
