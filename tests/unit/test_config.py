"""langgraph.json: what is read, what is warned about, and how a broken one is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from callboard.config import ConfigError, GraphSpec, load_project


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project folder with one graph file, a package and an env file."""
    (tmp_path / "agent.py").write_text("graph = None\n")
    (tmp_path / "package" / "src").mkdir(parents=True)
    (tmp_path / ".env").write_text("# a comment\nTOKEN='a b'\nEMPTY=\nexport MODEL=small\n")
    return tmp_path


def write(folder: Path, content: object) -> Path:
    path = folder / "langgraph.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


GRAPHS = {"agent": "./agent.py:graph"}


def test_a_project_is_read_as_written(folder: Path) -> None:
    path = write(
        folder,
        {
            "$schema": "any",
            "dependencies": [".", "./package", "langchain-openai"],
            "graphs": {
                "agent": {"path": "./agent.py:graph", "description": "Answers"},
                "other": "package.module:make_graph",
            },
            "env": ".env",
            "pip_installer": "uv",
            "dockerfile_lines": [],
            "http": {"cors": {"allow_origins": ["*"]}},
        },
    )
    project = load_project(path)
    assert project.root == folder
    assert project.graphs["agent"] == GraphSpec("./agent.py:graph", "Answers")
    assert project.graphs["other"] == GraphSpec("package.module:make_graph")
    assert project.sections["http"] == {"cors": {"allow_origins": ["*"]}}
    assert project.to_child() == {
        "root": str(folder),
        "graphs": {"agent": "./agent.py:graph", "other": "package.module:make_graph"},
        "dependencies": [str(folder), str(folder / "package"), str(folder / "package" / "src")],
        "env": {"TOKEN": "a b", "EMPTY": "", "MODEL": "small"},
        "store": {},
    }
    assert json.loads(json.dumps(project.to_child())) == project.to_child()
    assert [warning for warning in project.warnings if "langchain-openai" in warning]


def test_a_folder_stands_for_its_langgraph_json(folder: Path) -> None:
    write(folder, {"graphs": GRAPHS})
    assert load_project(folder).path == folder / "langgraph.json"


def test_env_may_be_an_object_of_texts_and_numbers(folder: Path) -> None:
    write(folder, {"graphs": GRAPHS, "env": {"A": "text", "B": 3, "C": True}})
    assert load_project(folder).env == {"A": "text", "B": "3", "C": "true"}


def test_a_byte_order_mark_is_no_content(folder: Path) -> None:
    (folder / "langgraph.json").write_bytes(
        b"\xef\xbb\xbf" + json.dumps({"graphs": GRAPHS}).encode()
    )
    assert load_project(folder).graphs


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        ({"grahps": {}}, "grahps"),
        ({"python_version": "3.99"}, "3.99"),
        ({"store": {"tll": {}}}, "store.tll"),
        ({"graphs": {"agent": {"path": "./agent.py:graph", "title": "x"}}}, "graphs.agent.title"),
    ],
)
def test_what_is_not_understood_is_a_warning(
    folder: Path, extra: dict[str, Any], word: str
) -> None:
    write(folder, {"graphs": GRAPHS, **extra})
    assert any(word in warning for warning in load_project(folder).warnings)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["valid JSON", "line 1 column 1"]),
        ('{\n  "graphs": {,}\n}', ["valid JSON", "line 2 column 14"]),
        ("[" * 100_000, ["valid JSON", "nested"]),
        ("[]", ["an object", "a list"]),
        ("{}", ["graphs", "nothing"]),
        ({"graphs": None}, ["graphs", "nothing"]),
        ({"graphs": {}}, ["graphs", "an empty object", "at least one"]),
        ({"graphs": ["./agent.py:graph"]}, ["graphs", "a list"]),
        ({"graphs": {"agent": 5}}, ["graphs.agent", "5"]),
        ({"graphs": {"": "./agent.py:graph"}}, ["graphs", "an empty name"]),
        ({"graphs": {"agent": {}}}, ["graphs.agent.path", "nothing"]),
        ({"graphs": {"agent": {"path": 1}}}, ["graphs.agent.path", "1"]),
        (
            {"graphs": {"agent": {"path": "./agent.py:graph", "description": 1}}},
            ["graphs.agent.description", "text"],
        ),
        ({"graphs": {"agent": "./agent.py"}}, ["graphs.agent", '"./agent.py"', "variable"]),
        ({"graphs": {"agent": "./agent.py:"}}, ["graphs.agent"]),
        ({"graphs": {"agent": ":graph"}}, ["graphs.agent"]),
        ({"graphs": {"agent": "./agent.py:a b"}}, ["graphs.agent"]),
        ({"graphs": {"agent": "./gone.py:graph"}}, ["graphs.agent", "no such file"]),
        ({"graphs": {"agent": "./agent.ts:graph"}}, ["graphs.agent", "JavaScript"]),
        ({"graphs": {"agent": "not a module:graph"}}, ["graphs.agent"]),
        (
            '{"graphs": {"agent": "./agent.py:graph", "agent": "./agent.py:other"}}',
            ["agent", "twice"],
        ),
        ({"graphs": GRAPHS, "dependencies": "."}, ["dependencies", '"."', "a list"]),
        ({"graphs": GRAPHS, "dependencies": ["./gone"]}, ["dependencies[0]", "no such folder"]),
        ({"graphs": GRAPHS, "dependencies": [".", 7]}, ["dependencies[1]", "7"]),
        ({"graphs": GRAPHS, "env": "gone.env"}, ["env", "no such file"]),
        ({"graphs": GRAPHS, "env": ["A"]}, ["env", "a list"]),
        ({"graphs": GRAPHS, "env": {"A": None}}, ["env.A", "null"]),
        ({"graphs": GRAPHS, "python_version": 3.11}, ["python_version", "3.11"]),
        ({"graphs": GRAPHS, "http": []}, ["http", "a list"]),
        ({"graphs": GRAPHS, "auth": {"path": "./gone.py:auth"}}, ["auth.path", "no such file"]),
        ({"graphs": GRAPHS, "encryption": {"path": "x"}}, ["encryption", "cannot enforce"]),
        (
            {"graphs": GRAPHS, "env": {"LANGGRAPH_AES_KEY": "0123456789abcdef"}},
            ["LANGGRAPH_AES_KEY", "cannot enforce"],
        ),
    ],
)
def test_a_broken_file_is_refused_with_a_sentence(
    folder: Path, content: object, words: list[str]
) -> None:
    path = write(folder, content)
    with pytest.raises(ConfigError) as caught:
        load_project(path)
    for word in [str(path), "expected", "got", *words]:
        assert word in str(caught.value)


def test_a_key_in_the_environment_that_would_encrypt_nothing_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(folder, {"graphs": GRAPHS})
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "")
    load_project(path)
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "0123456789abcdef")
    with pytest.raises(ConfigError, match="LANGGRAPH_AES_KEY: expected no such variable") as caught:
        load_project(path)
    assert "0123456789abcdef" not in str(caught.value)


def test_a_missing_file_and_a_file_that_is_not_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_project(tmp_path / "langgraph.json")
    (tmp_path / "langgraph.json").write_bytes(b'{"graphs": "\xff"}')
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_project(tmp_path)
