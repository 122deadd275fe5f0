"""Several processes that enter releases into one ledger, and locks of processes that died."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

import dpmech as dm
from dpmech.ledgers.ledger_file import locked
from tests.support import saved

ROOT = pathlib.Path(__file__).parents[3]
ADDING = """
import pathlib, sys, time
from click.testing import CliRunner
from dpmech import cli
me = sys.argv[1]
pathlib.Path(f"ready-{me}").touch()
while len(list(pathlib.Path().glob("ready-*"))) < 2:
    time.sleep(0.001)
for number in range(8):
    call = ["ledger", "add", "ledger.json", "certificate.json", "--name", f"{me}-{number}"]
    result = CliRunner().invoke(cli.main, call)
    assert result.exit_code == 0, result.output
"""
HOLDING = """
import pathlib, time
from dpmech.ledgers.ledger_file import locked
with locked("ledger.json"):
    pathlib.Path("held").touch()
    time.sleep(600)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    saved.calibration("single").certificate().save("certificate.json")
    dm.Ledger().save("ledger.json")
    return tmp_path


@pytest.mark.slow
def test_two_processes_lose_no_entry(folder):
    both = [subprocess.Popen([sys.executable, "-c", ADDING, name]) for name in ("a", "b")]
    assert [one.wait(timeout=300) for one in both] == [0, 0]
    names = [release.name for release in dm.Ledger.load("ledger.json").releases]
    assert sorted(names) == sorted(f"{me}-{number}" for me in "ab" for number in range(8))
    assert [path.name for path in folder.iterdir() if "lock" in path.name or "part" in path.name] == []


def test_the_lock_of_a_process_that_was_killed_is_free(folder):
    holder = subprocess.Popen([sys.executable, "-c", HOLDING])
    while not pathlib.Path("held").exists():
        assert holder.poll() is None
        time.sleep(0.005)
    assert pathlib.Path(".ledger.json.lock").exists()
    with (
        pytest.raises(dm.InvalidParameterError, match=r"no other process is writing.*\.ledger\.json\.lock"),
        locked("ledger.json", patience=0.05),
    ):
        pytest.fail("two at once")
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    ledger = dm.Ledger.load("ledger.json")
    ledger.add("one", saved.calibration("single"))
    ledger.save("ledger.json")
    assert not pathlib.Path(".ledger.json.lock").exists()


def test_a_lock_is_given_back_also_after_an_error(folder):
    for _ in range(2):
        with pytest.raises(KeyError), locked("ledger.json"), locked(folder / "ledger.json"):
            raise KeyError
    assert not pathlib.Path(".ledger.json.lock").exists()


def test_a_lock_that_was_replaced_while_somebody_waited_is_none(folder, monkeypatch):
    import fcntl

    taken = []
    real = fcntl.flock

    def flock(handle, operation):
        real(handle, operation)
        if not taken:  # the one before removes the file that this one had open
            taken.append(handle)
            pathlib.Path(".ledger.json.lock").unlink()

    monkeypatch.setattr(fcntl, "flock", flock)
    with locked("ledger.json"):
        assert taken
        assert pathlib.Path(".ledger.json.lock").exists()


def test_a_folder_that_may_not_be_written(folder):
    with (
        pytest.raises(dm.InvalidParameterError, match="a file in a folder that may be written"),
        locked(folder / "no" / "ledger.json"),
    ):
        pytest.fail("no such folder")


def test_two_programs_that_save_are_told_apart(folder):
    one, other = dm.Ledger.load("ledger.json"), dm.Ledger.load("ledger.json")
    one.add("one", saved.calibration("single"))
    one.save("ledger.json")
    other.add("other", saved.calibration("single"))
    with pytest.raises(dm.InvalidParameterError, match="load it again"):
        other.save("ledger.json")
