"""Commands on several processes and on a cluster: the same output, whoever does the work."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

import dpmech as dm
from dpmech import cli
from dpmech.cli.running import in_order, silent

PLAN = ["--dataset-size", "40", "--batch-size", "10", "--epochs", "2", "--eps", "2", "--delta", "1e-3"]
BINS = ["--sampling", "balls-in-bins", "--seed", "3"]
LAMBDA = ["--strategy", "lambda-cgd", "--lam", "0.5"]
TWO = ["--strategies", "identity,lambda-cgd:lam=0.5"]


def run(*arguments):
    return CliRunner().invoke(cli.main, list(arguments))


def told(*arguments):
    """What a command writes as JSON, but for times."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output

    def timeless(value):
        if isinstance(value, dict):
            return {key: timeless(one) for key, one in value.items() if key != "seconds"}
        return [timeless(one) for one in value] if isinstance(value, list) else value

    return timeless(json.loads(result.stdout))


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["calibrate", *PLAN, *BINS, *LAMBDA], marks=pytest.mark.slow),
        pytest.param(
            ["compare", *PLAN, "--sampling", "balls-in-bins,poisson", "--seed", "3", *TWO],
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ["optimize", *PLAN, "--sampling", "epochs", "--families", "lambda-cgd,blt:buffers=1"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda command: command[0],
)
@pytest.mark.slow
def test_two_processes_say_what_one_says(command):
    assert told(*command, "--workers", "2") == told(*command)
    assert told(*command, "--workers", "1") == told(*command)


@pytest.mark.parametrize("command", ["compare", "optimize"])
def test_a_refusal_of_another_process_is_one_of_the_command(command):
    own = (
        ["--strategies", "lambda-cgd:lam=0.5,bsr:bands=2", "--sampling", "cyclic-poisson", "--cycle", "1"]
        if command == "compare"
        else ["--sampling", "x"]
    )
    here, there = run(command, *PLAN, *own), run(command, *PLAN, *own, "--workers", "2")
    assert here.exit_code == there.exit_code == 2
    assert here.stderr.splitlines()[-1] == there.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--workers", "0"], "workers must be an integer in [1, 1024], got 0"),
        (["--workers", "2000"], "workers must be an integer in [1, 1024], got 2000"),
        (["--workers", "2", "--dask", "tcp://127.0.0.1:1"], "workers must be left out with --dask"),
        (["--dask", "nowhere"], "dask must be the address of a running dask scheduler"),
    ],
)
def test_bad_places(options, message):
    result = run("calibrate", *PLAN, *BINS, *LAMBDA, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_calls_run_here_without_an_executor():
    lines = []

    def call(value, *, executor, report):
        report(f"at {value}")
        return value, executor

    assert list(in_order(None, lines.append, call, [(1,), (2,)])) == [(1, None), (2, None)]
    assert lines == ["at 1", "", "at 2", ""]
    assert silent("nothing") is None


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed", reason="dask is optional")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as local:
        yield local


@pytest.mark.slow
# dask's own, at its start and at its end
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
class TestCluster:
    def test_a_cluster_says_what_one_process_says(self, cluster):
        for command in (
            ["calibrate", *PLAN, *BINS, *LAMBDA],
            ["compare", *PLAN, *BINS, *TWO],
        ):
            assert told(*command, "--dask", cluster.scheduler_address) == told(*command)

    @pytest.mark.exhaustive
    def test_the_example_of_the_page_runs(self, tmp_path):
        page = (pathlib.Path(__file__).parents[3] / "docs" / "fitting.md").read_text()
        (example,) = (
            part for part in re.findall(r"```python\n(.*?)```", page, re.S) if "LocalCluster" in part
        )
        script = tmp_path / "example.py"
        script.write_text(example)
        done = subprocess.run(
            [sys.executable, script], check=False, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr

    def test_a_worker_of_the_cluster_that_is_killed_changes_nothing(self, cluster):
        here = dm.calibrate_sigma(
            dm.LambdaCGD(12, 0.5),
            2.0,
            1e-5,
            participation=dm.BallsInBins(4),
            rng=5,
            method=dm.methods.Certified(),
        )
        killed = []

        def kill(_line):
            if not killed:
                killed.append(next(iter(cluster.workers.values())).pid)
                os.kill(killed[0], signal.SIGKILL)

        with dm.Cluster(cluster.scheduler_address) as executor:
            there = dm.calibrate_sigma(
                dm.LambdaCGD(12, 0.5),
                2.0,
                1e-5,
                participation=dm.BallsInBins(4),
                rng=5,
                method=dm.methods.Certified(),
                executor=executor,
                progress=kill,
            )
        assert killed
        assert there == here

    @pytest.mark.exhaustive
    def test_a_cluster_that_goes_away_is_told(self, tmp_path):
        distributed = pytest.importorskip("distributed", reason="dask is optional")
        local = distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
        )
        out = tmp_path / "certificate.json"

        def leave(_line):
            local.close()

        with (
            dm.Cluster(local.scheduler_address) as executor,
            pytest.raises(dm.exceptions.WorkerError, match="cluster lost the work"),
        ):
            dm.calibrate_sigma(
                dm.LambdaCGD(12, 0.5),
                2.0,
                1e-5,
                participation=dm.BallsInBins(4),
                executor=executor,
                progress=leave,
            ).certificate().save(out)
        assert not out.exists()
