"""The store section of langgraph.json, as the LangGraph CLI describes it."""

import json
from pathlib import Path
from typing import Any

import pytest

from callboard.config import ConfigError, Project, load_project
from persistence.store import StoreConfig


def read(folder: Path, store: Any) -> Project:
    (folder / "agent.py").touch()
    project = {"graphs": {"agent": "./agent.py:graph"}, "store": store}
    (folder / "langgraph.json").write_text(json.dumps(project))
    return load_project(folder)


@pytest.mark.parametrize(
    ("section", "config"),
    [
        ({}, StoreConfig()),
        ({"index": None, "ttl": None}, StoreConfig()),
        (
            {"index": {"embed": "openai:text-embedding-3-small", "dims": 1536}},
            StoreConfig(vector_dims=1536),
        ),
        (
            {"index": {"embed": "./agent.py:embed", "dims": 4, "fields": ["a.b", "$"]}},
            StoreConfig(vector_dims=4),
        ),
        (
            {"index": {"embed": "pkg.module:embed", "dims": 4, "fields": None}},
            StoreConfig(vector_dims=4),
        ),
        (
            {"ttl": {"default_ttl": 1.5, "refresh_on_read": False, "sweep_interval_minutes": 5}},
            StoreConfig(default_ttl_minutes=1.5, refresh_on_read=False),
        ),
        ({"ttl": {"default_ttl": None, "sweep_interval_minutes": None}}, StoreConfig()),
    ],
)
def test_what_it_means(tmp_path: Path, section: Any, config: StoreConfig) -> None:
    project = read(tmp_path, section)
    assert project.store == config
    assert project.to_child()["store"] == section


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ([], ["store", "a list"]),
        ({"index": []}, ["store.index", "a list"]),
        ({"index": {"embed": "a:b"}}, ["store.index.dims", "nothing"]),
        ({"index": {"embed": "a:b", "dims": "4"}}, ["store.index.dims", '"4"']),
        ({"index": {"embed": "a:b", "dims": 0}}, ["store.index.dims", "0"]),
        ({"index": {"embed": "a:b", "dims": True}}, ["store.index.dims", "true"]),
        ({"index": {"embed": "a:b", "dims": 16001}}, ["store.index.dims", "16000"]),
        ({"index": {"dims": 4}}, ["store.index.embed", "nothing"]),
        ({"index": {"embed": 5, "dims": 4}}, ["store.index.embed", "5"]),
        ({"index": {"embed": "embed", "dims": 4}}, ["store.index.embed", "provider:model"]),
        ({"index": {"embed": "./gone.py:embed", "dims": 4}}, ["store.index.embed", "no such file"]),
        ({"index": {"embed": "./agent.py:a b", "dims": 4}}, ["store.index.embed", "variable"]),
        ({"index": {"embed": "a:b", "dims": 4, "fields": "x"}}, ["store.index.fields", '"x"']),
        ({"index": {"embed": "a:b", "dims": 4, "fields": [1]}}, ["store.index.fields", "a list"]),
        ({"ttl": 5}, ["store.ttl", "5"]),
        ({"ttl": {"default_ttl": 0}}, ["store.ttl.default_ttl", "0"]),
        ({"ttl": {"default_ttl": "5"}}, ["store.ttl.default_ttl", '"5"']),
        ({"ttl": {"sweep_interval_minutes": -1}}, ["store.ttl.sweep_interval_minutes", "-1"]),
        ({"ttl": {"refresh_on_read": "yes"}}, ["store.ttl.refresh_on_read", "true or false"]),
    ],
)
def test_what_is_refused(tmp_path: Path, section: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, section)
    for word in words:
        assert word in str(caught.value)
