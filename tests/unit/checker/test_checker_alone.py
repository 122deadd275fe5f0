"""The checker needs numpy and python-flint, and nothing else: not even the package that it is kept in."""

import ast
import pathlib
import runpy
import shutil
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
    lines = [line for path in FILES for line in path.read_text(encoding="utf-8").splitlines()]
    assert sum(bool(line.strip()) for line in lines) <= 3000  # code, comments and docstrings


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


def run_alone(folder, *arguments):
    """Run Python in a folder that has numpy and python-flint, and without any other package."""
    packages = pathlib.Path(sysconfig.get_paths()["purelib"])
    names = ("numpy", "flint", "numpy.libs", "python_flint.libs")
    found = [path for name in names for path in packages.glob(name)]
    assert {path.name for path in found} >= {"numpy", "flint"}
    for path in found:
        (folder / path.name).symlink_to(path)
    done = subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=folder,
        env={"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done


def test_a_copy_of_the_folder_runs_with_numpy_and_flint_alone(tmp_path):
    (tmp_path / "checker").symlink_to(FOLDER)
    names = ["min-sep.json", "poisson.json", "bins_moments.json"]
    done = run_alone(tmp_path, "-m", "checker", *(str(SAVED / name) for name in names))
    assert done.returncode == 0
    assert done.stdout.count("PROVED") == 3


@pytest.mark.skipif(shutil.which("make") is None, reason="no make here")
def test_one_file_does_the_same(tmp_path):
    (tmp_path / "dpmech").mkdir()
    (tmp_path / "dpmech" / "checker").symlink_to(FOLDER)
    recipe = pathlib.Path(__file__).parents[3] / "Makefile"
    built = ["make", "-s", "-f", str(recipe), "checker.pyz", f"PYTHON={sys.executable}"]
    subprocess.run(built, cwd=tmp_path, check=True)
    alone = tmp_path / "alone"
    alone.mkdir()
    (tmp_path / "checker.pyz").rename(alone / "checker.pyz")
    assert "PROVED" in run_alone(alone, "checker.pyz", str(SAVED / "min-sep.json")).stdout
    broken = tmp_path / "broken.json"
    broken.write_text("{}", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "checker.pyz", str(broken)], cwd=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
