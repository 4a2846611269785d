"""An app named on the command line is found, or the message says what of it is missing or where its code fails."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward_cli.loading import load_app
from onceward_schemas.errors import AppError

APP = 'from onceward_consumer.app import App\napp = App("hr")\nother = 5\n'


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package with a fresh name in the working directory."""
    name = f"p{uuid.uuid4().hex[:8]}"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "handlers.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", ".")])
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def test_an_app_in_the_working_directory_is_found(package: str) -> None:
    assert load_app(f"{package}.handlers:app").name == "hr"
    assert load_app(f"{package}.handlers") is load_app(f"{package}.handlers:app")


@pytest.mark.parametrize("target", ["", ":app", "hr handlers:app", "../hr.py:app", ".x:app", "x:a.b"])
def test_a_name_that_is_none_is_refused(target: str) -> None:
    with pytest.raises(AppError, match=r"names no application\. Write module:attribute"):
        load_app(target)


@pytest.mark.parametrize(
    ("target", "meant"),
    [("service.py:app", "service:app"), ("./hr/handlers.py:main", "hr.handlers:main"), ("service.py", "service:app")],
)
def test_a_file_is_told_as_the_module_that_is_meant(target: str, meant: str) -> None:
    with pytest.raises(AppError, match=rf"is a file, not a module\. Did you mean {meant}\?"):
        load_app(target)


def test_a_missing_module_is_told_with_the_nearest_name(package: str) -> None:
    with pytest.raises(AppError, match=rf"There is no module {package}\.handler;.*Did you mean {package}\.handlers\?"):
        load_app(f"{package}.handler:app")


def test_a_missing_package_is_told(package: str) -> None:
    with pytest.raises(AppError, match=r"There is no module nowhere; looked in .*in the folder that holds it"):
        load_app("nowhere.handlers:app")


def test_a_module_is_no_package(package: str) -> None:
    with pytest.raises(AppError, match=rf"{package}\.handlers is a module, not a package"):
        load_app(f"{package}.handlers.more:app")


def test_a_missing_attribute_is_told_with_the_nearest_app(package: str) -> None:
    with pytest.raises(AppError, match=rf"has no 'ap'\. Did you mean {package}\.handlers:app\?"):
        load_app(f"{package}.handlers:ap")


def test_an_attribute_that_is_no_app_is_refused(package: str) -> None:
    with pytest.raises(AppError, match=rf"other is a int, not an App\. Did you mean {package}\.handlers:app\?"):
        load_app(f"{package}.handlers:other")


@pytest.mark.parametrize(
    ("code", "says", "place"),
    [
        ("def f():\n    return 1 / 0\nf()\n", "ZeroDivisionError", "handlers.py:2  return 1 / 0"),
        ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all'", "handlers.py:1"),
        ("x = (\n", "SyntaxError", "handlers.py:1"),
        ("raise SystemExit('no licence')\n", "SystemExit: no licence", "handlers.py:1"),
        ('from onceward_consumer.app import App\nApp("h r")\n', "The app's name is 'h r'", 'handlers.py:2  App("h r")'),
    ],
)
def test_an_error_in_the_users_code_shows_its_own_lines_only(
    package: str, tmp_path: Path, code: str, says: str, place: str
) -> None:
    (tmp_path / package / "handlers.py").write_text(code)
    with pytest.raises(AppError) as caught:
        load_app(f"{package}.handlers:app")
    assert says in caught.value.message
    assert place in caught.value.message
    assert "importlib" not in caught.value.message
    assert "loading.py" not in caught.value.message
    assert caught.value.remedy
