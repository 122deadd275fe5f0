"""`dpmech doctor` and `--version`: what is absent, too old, broken or wrong is heard."""

import importlib.metadata
import json
import subprocess
import types

import pytest
from packaging.requirements import Requirement

from dpmech.cli import diagnosing
from tests.support.command_line import done, told

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def quick(monkeypatch):
    """Nothing is imported that takes seconds."""
    monkeypatch.setattr(diagnosing, "_EXTRAS", ())
    monkeypatch.setattr(diagnosing, "_device", lambda: None)


def test_it_works_here(quick):
    found = told("doctor")
    assert found["ok"]
    assert {one["name"] for one in found["needed"]} >= {"numpy", "scipy", "python-flint", "packaging"}
    assert all(one["version"] and not one["fault"] for one in found["needed"])
    assert found["check"]["sigma"] == pytest.approx(0.9022, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("no-such-package>=1", "not installed"),
        ("numpy>=99", "needs >=99"),
        ("numpy<=99", ""),
    ],
)
def test_missing_and_old_packages_are_heard(quick, monkeypatch, text, fault):
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: [text, 'sphinx>=1; extra == "docs"'])
    result = done("doctor", code=1 if fault else 0)
    name = Requirement(text).name
    (line,) = (line for line in result.stdout.splitlines() if line.strip().startswith(name))
    assert line.endswith(fault)
    assert "sphinx" not in result.stdout
    assert ("dpmech does NOT work here" in result.stdout) == bool(fault)


def test_a_package_that_cannot_be_imported_is_heard(quick, monkeypatch):
    def broken(name):
        raise OSError(f"lib{name}.so:\nno such file")

    monkeypatch.setattr(diagnosing.importlib, "import_module", broken)
    text = done("doctor", code=1).stdout
    (line,) = (line for line in text.splitlines() if "scipy" in line)
    assert "import scipy: OSError: libscipy.so:" in line
    assert line.endswith("no such file")


def test_extras_may_be_absent(quick, monkeypatch):
    monkeypatch.setattr(diagnosing, "_EXTRAS", ("big", "small"))
    texts = [
        "numpy",
        'dpmech[small]; extra == "big"',
        'no-such>=2; extra == "small"',
        'numpy; extra == "big"',
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: texts)
    text = done("doctor").stdout
    for name in ("big", "small"):
        assert f"  {name}: no: no-such: not installed; from a checkout: pip install '.[{name}]'" in text
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: ["numpy", 'numpy>=99; extra == "big"'])
    monkeypatch.setattr(diagnosing, "_EXTRAS", ("big",))
    text = done("doctor").stdout
    assert "pip install" not in text
    assert "big: no: numpy" in text


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_a_wrong_number_is_heard(quick, monkeypatch, factor):
    """Planted: less noise than needed, and more than a calibration may add."""
    right = diagnosing._RIGHT
    monkeypatch.setattr(diagnosing, "_RIGHT", right / factor)
    assert f"WRONG: another accountant has {right / factor}" in done("doctor", code=1).stdout


def test_a_claim_that_is_not_verified_is_heard(quick, monkeypatch):
    monkeypatch.setattr(diagnosing, "verify", lambda _: type("Report", (), {"ok": False}))
    assert "WRONG" in done("doctor", code=1).stdout


def git(folder, *words):
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=trunk")
    call = ["git", "-C", str(folder), *settings, *words]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()


def test_commit_of_a_checkout(tmp_path):
    """As git says it: on a branch, after packing, detached, and in a linked worktree."""
    main, linked = tmp_path / "main", tmp_path / "linked"
    main.mkdir()
    git(main, "init", "-q")
    assert diagnosing.head_commit(main / ".git") is None
    git(main, "commit", "-q", "--allow-empty", "-m", "one")
    for change in (
        (),
        ("pack-refs", "--all"),
        ("commit", "-q", "--allow-empty", "-m", "2"),
        ("checkout", "-q", "@~"),
    ):
        if change:
            git(main, *change)
        assert diagnosing.head_commit(main / ".git") == git(main, "rev-parse", "HEAD")
    git(main, "worktree", "add", "-q", "-b", "other/name", str(linked), "trunk")
    assert diagnosing.head_commit(linked / ".git") == git(linked, "rev-parse", "HEAD")
    assert diagnosing.head_commit(tmp_path / ".git") is None


def test_commit_of_an_installation(monkeypatch):
    """PEP 610: an installation from a repository records the commit."""
    content = json.dumps({"url": "x", "vcs_info": {"vcs": "git", "commit_id": COMMIT}})
    recorded = types.SimpleNamespace(read_text=lambda _: content)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda _: recorded)
    assert diagnosing.commit() == COMMIT


def test_version_names_the_commit(monkeypatch):
    plain = importlib.metadata.version("dpmech")
    monkeypatch.setattr(diagnosing, "commit", lambda: COMMIT)
    assert done("--version").stdout == f"dpmech, version {plain} (commit {COMMIT[:12]})\n"
    monkeypatch.setattr(diagnosing, "commit", lambda: None)
    assert done("--version").stdout == f"dpmech, version {plain}\n"


def test_the_device_is_named():
    torch = pytest.importorskip("torch")
    found = diagnosing._device()
    assert found.startswith("cpu") is not torch.accelerator.is_available()


def test_extras_of_users_are_those_of_the_package():
    """Every extra that is no tool of developers is tried."""
    named = {one for one in importlib.metadata.metadata("dpmech").get_all("Provides-Extra")}
    assert named - set(diagnosing._EXTRAS) == {
        *("docs", "test", "lint", "browser", "oracle", "examples", "dev"),
        "sign",  # needs nothing any more
    }
