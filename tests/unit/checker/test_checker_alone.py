"""The checker needs numpy and python-flint, and nothing else: not even the package that it is kept in."""

import ast
import pathlib
import runpy
import subprocess
import sys
import sysconfig

import pytest

import dpmech.checker

FOLDER = pathlib.Path(dpmech.checker.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))
SAVED = pathlib.Path(__file__).parents[2] / "certificates"


def test_it_is_small():
    assert len(FILES) <= 15
    assert not [path for path in FOLDER.rglob("*") if path.is_dir() and path.name != "__pycache__"]
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES) <= 3000


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_imports_the_standard_library_numpy_and_flint(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1
            names = [] if node.level else [node.module]
        else:
            continue
        for name in names:
            top = name.split(".")[0]
            assert top in {"numpy", "flint"} or top in sys.stdlib_module_names, name


def test_it_is_a_command(monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "dpmech.checker.__main__", raising=False)
    monkeypatch.setattr(sys, "argv", ["checker", str(SAVED / "min-sep.json")])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("dpmech.checker", run_name="__main__")
    assert ended.value.code == 0
    assert "PROVED" in capsys.readouterr().out


def test_a_copy_of_the_folder_runs_with_numpy_and_flint_alone(tmp_path):
    packages = pathlib.Path(sysconfig.get_paths()["purelib"])
    found = [
        path for name in ("numpy", "flint", "numpy.libs", "python_flint.libs") for path in packages.glob(name)
    ]
    assert {path.name for path in found} >= {"numpy", "flint"}
    for path in found:
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "checker").symlink_to(FOLDER)
    names = ["min-sep.json", "poisson.json", "bins_moments.json"]
    done = subprocess.run(
        [sys.executable, "-S", "-m", "checker", *(str(SAVED / name) for name in names)],
        cwd=tmp_path,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == 0
    assert done.stdout.count("PROVED") == 3
