"""docs/settings.md tells every setting and its true default, and none that does not exist."""

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from actors.settings import WorkerSettings
from gateway.settings import GatewaySettings
from persistence.settings import DatabaseSettings

ROWS = re.findall(
    r"^\| `([A-Z_]+)` \| ([^|]*) \|",
    (Path(__file__).parents[2] / "docs" / "settings.md").read_text(),
    flags=re.MULTILINE,
)
DEFAULTS = dict(ROWS)
OF_THE_COMMAND = {
    *("CALLBOARD_CONFIG", "CALLBOARD_DATA", "CALLBOARD_GATEWAYS", "CALLBOARD_WORKERS"),
    *("LOG_LEVEL", "LOG_JSON"),
}


def defaults(settings: type[BaseSettings]) -> dict[str, object]:
    prefix = str(settings.model_config.get("env_prefix") or "")
    return {
        f"{prefix}{name}".upper(): field.default for name, field in settings.model_fields.items()
    }


@pytest.mark.parametrize("settings", [GatewaySettings, DatabaseSettings, WorkerSettings])
def test_every_setting_is_told_with_its_default(settings: type[BaseSettings]) -> None:
    for name, default in defaults(settings).items():
        assert name in DEFAULTS, name
        if default is None or default is PydanticUndefined:
            assert not re.fullmatch(r"`[\d.]+`", DEFAULTS[name]), name
        else:
            value = ",".join(default) if isinstance(default, tuple) else default
            assert DEFAULTS[name] == f"`{value}`", name


def test_no_other_setting_is_told() -> None:
    known = OF_THE_COMMAND.union(
        *(defaults(settings) for settings in (GatewaySettings, DatabaseSettings, WorkerSettings))
    )
    assert set(DEFAULTS) == known
    assert len(ROWS) == len(DEFAULTS)
