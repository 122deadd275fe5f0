"""Runs that are killed at random points, again and again, until they end: as if nothing had happened.

Run as a script it forks the processes of all runs, kills them, and saves what they left; the tests look at
that. A fork starts in milliseconds, because torch is there already.
"""

import dataclasses
import hashlib
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import nullcontext
from unittest import mock

import numpy as np
import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402 - after the check for torch

from dpmech.optim import load_checkpoint, make_private, save_checkpoint  # noqa: E402

pytestmark = pytest.mark.slow  # it trains some hundred times

SIZE, N, EPOCH, EVERY = 30, 24, 6, 4  # every fourth step a checkpoint: in the middle of epochs of six
KILLS = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """How runs are set up, and what is done to them between a kill and the next start.

    Attributes:
        strategy: C.
        participation: who takes part when.
        trials: how many runs.
        most: max_physical_batch_size.
        functional: torch.func; otherwise Opacus, with dropout.
        world: processes.
        harm: "" for nothing; what a faulty checkpoint would get wrong; or "newest": the last process was
            killed before it wrote its newest checkpoint.
        secure: batches and noise from a cipher, with the same keys in every run.
    """

    strategy: dm.Strategy
    participation: dm.Participation
    trials: int
    most: int | None = None
    functional: bool = True
    world: int = 1
    harm: str = ""
    secure: bool = False


BINS = {"strategy": dm.LambdaCGD(N, 0.5), "participation": dm.BallsInBins(EPOCH)}
CASES = {
    "Balls-in-Bins": Case(**BINS, trials=20),
    "Balls-in-Bins, microbatches": Case(**BINS, trials=10, most=2),
    "separated, Opacus": Case(dm.SquareRoot(N, 3), dm.MinSep(EPOCH), 3, functional=False),
    "Poisson, Opacus, microbatches": Case(dm.Identity(N), dm.Poisson(0.2), 3, 3, functional=False),
    "Balls-in-Bins, from a cipher": Case(**BINS, trials=3, secure=True),
    "correlated by a recursion, from a cipher": Case(dm.SquareRoot(N, 3), dm.MinSep(EPOCH), 2, secure=True),
    # Dropout does not follow from torch's own generator, which is another one in the checkpoint.
    "dropout, another generator": Case(**BINS, trials=1, functional=False, harm="dropout"),
    "two processes": Case(**BINS, trials=4, world=2),
    "two processes, one checkpoint behind": Case(**BINS, trials=2, world=2, harm="newest"),
}


# ---- one process of a run


def network(case):
    torch.manual_seed(5)
    # Under torch.func dropout would have to be told how to draw.
    drop = torch.nn.Identity() if case.functional else torch.nn.Dropout(0.3)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), drop, torch.nn.Linear(5, 3))


def loss(model, x, target):
    return torch.nn.functional.cross_entropy(model(x), target)


def train(case, cal, folder, rank, tell):
    """Train to the end, from the checkpoint if there is one; `tell` is called wherever something happened."""
    rng = torch.Generator().manual_seed(6)
    dataset = TensorDataset(torch.randn(SIZE, 4, generator=rng), torch.randint(3, (SIZE,), generator=rng))
    model = network(case)
    checkpoint = folder / f"checkpoint-{rank}.pt"
    # Otherwise the keys come from there. Where a process was killed before its first one, all begin anew.
    fresh = not all((folder / f"checkpoint-{one}.pt").exists() for one in range(case.world))
    seeds = {"generator": 7, "rng": 8} if fresh else {}
    with mock.patch("secrets.randbits", return_value=9) if case.secure and fresh else nullcontext():
        parts = private, optimizer, batches = make_private(
            model,
            torch.optim.Adam(model.parameters(), lr=0.1),
            DataLoader(dataset),
            cal,
            1.0,
            loss=loss if case.functional else None,
            expected_batch_size=SIZE * getattr(case.participation, "sampling_prob", 1 / EPOCH),
            max_physical_batch_size=case.most,
            **({"rng": "secure"} if case.secure else seeds),
        )
    load_checkpoint(checkpoint, *parts, missing_ok=True)
    if batches.steps_taken == 0:
        save_checkpoint(checkpoint, *parts)
    tell()
    log = os.open(folder / f"log-{rank}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while optimizer.steps_left:
        for x, target in batches:
            tell()
            if case.functional:
                private.backward(x, target)
            elif len(x):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(private(x), target).backward()
            step = batches.steps_taken
            optimizer.step()
            if not optimizer.batch_complete:
                continue
            released = b"".join(param.grad.numpy().tobytes() for param in model.parameters())
            line = [step, batches.sampler.indices(step).tolist(), hashlib.sha256(released).hexdigest()]
            os.write(log, (json.dumps(line) + "\n").encode())
            tell()
            if batches.steps_taken % EVERY == 0:
                save_checkpoint(checkpoint, *parts)
                tell()
    tracker = batches.tracker.state_dict()
    found = {
        "weights": [param.detach() for param in model.parameters()],
        "record": optimizer.run_record().to_json(),
        "last": tracker["last"].tolist(),
        "counts": tracker["counts"].tolist(),
    }
    torch.save(found, folder / f"{rank}.part")
    (folder / f"{rank}.part").replace(folder / f"{rank}.pt")


# ---- killing


def fork(case, cal, folder, rank, number):
    """Start one process; returns its id, and the pipe on which it tells how far it is."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        os.close(reading)
        if case.world > 1:
            store = torch.distributed.FileStore(str(folder / f"store-{number}"), case.world)
            torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=case.world)
        train(case, cal, folder, rank, lambda: os.write(writing, b"."))
        os._exit(0)
    except BaseException as error:  # noqa: BLE001 - a fork must never go on with its parent's code
        (folder / f"error-{number}-{rank}").write_text(repr(error))
    finally:
        os._exit(1)


def attempt(case, cal, folder, number, point=None, delays=(0.0, 0.0)):
    """Run to the end, or until the first process has told of `point` things, and then kill.

    Returns whether it was killed, and of how many things the first process told.
    """
    children = [fork(case, cal, folder, rank, number) for rank in range(case.world)]
    told, reached = 0, False
    while data := os.read(children[0][1], 1 if point else 4096):
        told += len(data)
        reached = told == point
        if reached:
            break
    if reached:
        for (child, _), delay in zip(reversed(children), delays, strict=False):
            select.select([], [], [], delay)
            os.kill(child, signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child, _ in children]
    for _, pipe in children:
        os.close(pipe)
    expected = {0}
    if reached:
        expected |= {-signal.SIGKILL} if case.world == 1 else {-signal.SIGKILL, 1}  # 1: the other one is gone
    if not expected.issuperset(codes):
        raise RuntimeError(f"{codes}: {[path.read_text() for path in folder.glob('error-*')]}")
    return -signal.SIGKILL in codes, told


def saved_steps(path):
    return torch.load(path, weights_only=True)["loader"]["steps"]


def harm(case, folder):
    path = folder / f"checkpoint-{case.world - 1}.pt"
    if case.harm == "newest":
        # A process can be one checkpoint behind the others, never two: where it is behind already, it stays.
        first = folder / "checkpoint-0.pt"
        if first.exists() and path.exists() and saved_steps(first) <= saved_steps(path):
            path.with_name(path.name + ".previous").replace(path)
        return
    state = torch.load(path, weights_only=True)
    state["torch_rng"] = torch.Generator().manual_seed(9).get_state()
    torch.save(state, path)


def disturbed(case, cal, folder, points, chance):
    """A run that is killed at random points, and at last let go; returns how often it was killed."""
    kills = 0
    for number in range(KILLS):
        # Harm needs a checkpoint in the middle. The delays end within a step, which takes some 5 ms.
        point = chance.randrange(points // 2 if case.harm and not number else 1, points - 4)
        delays = chance.random() * 0.005, chance.random() * 0.002
        kills += attempt(case, cal, folder, number, point, delays)[0]
        if case.harm and not number:
            harm(case, folder)
    attempt(case, cal, folder, KILLS)
    return kills


def few(trials):
    """How many of the trials the gate runs."""
    return min(trials, max(2, trials // 5))


def everything(folder, trials_of):
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    chance = random.Random(1)
    report = {}
    for place, (name, case) in enumerate(CASES.items()):
        cal = dm.calibrate_sigma(case.strategy, 8.0, 1e-5, participation=case.participation, rng=1)
        home = folder / str(place)
        home.mkdir()
        if case.world == 1:  # what torch imports late, it imports once, before the forks
            (home / "warm").mkdir()
            train(case, cal, home / "warm", 0, lambda: None)
        (home / "whole").mkdir()
        points = attempt(case, cal, home / "whole", 0)[1]
        trials = []
        for trial in range(trials_of(case.trials)):
            folder_of_trial = home / str(trial)
            folder_of_trial.mkdir()
            kills = disturbed(case, cal, folder_of_trial, points, chance)
            trials.append({"kills": kills, "ranks": left(case, folder_of_trial)})
        report[name] = {"whole": left(case, home / "whole"), "trials": trials}
    torch.save(report, folder / "report.pt")


def left(case, folder):
    """What every process of a run left behind."""
    found = []
    for rank in range(case.world):
        result = torch.load(folder / f"{rank}.pt", weights_only=True)
        lines = (folder / f"log-{rank}").read_text().splitlines()
        # A line may be cut where the process was killed.
        result["log"] = [json.loads(line) for line in lines if line.endswith("]")]
        found.append(result)
    return found


# ---- what is left


@pytest.fixture(scope="module", params=["few", pytest.param("all", marks=pytest.mark.exhaustive)])
def report(request):
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            [sys.executable, __file__, name, request.param],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        found = torch.load(pathlib.Path(name) / "report.pt", weights_only=True)
    for name, case in CASES.items():
        assert len(found[name]["trials"]) == (few(case.trials) if request.param == "few" else case.trials)
    return found


def same(case, first, second):
    """Whether two runs ended with the same weights, record and participations."""
    for one, other in zip(first, second, strict=True):
        records = [dm.RunRecord.from_json(run["record"]) for run in (one, other)]
        # How often a run resumed from a saved state is the one thing that may differ.
        records = [
            dataclasses.replace(
                record, checkpoint_history=dataclasses.replace(record.checkpoint_history, loads=0)
            )
            for record in records
        ]
        if not case.participation.random:  # the batches follow from nothing, and their key is never used
            records[0] = dataclasses.replace(records[0], sampler=records[1].sampler)
        if records[0] != records[1] or any(one[name] != other[name] for name in ("last", "counts")):
            return False
        if not all(torch.equal(a, b) for a, b in zip(one["weights"], other["weights"], strict=True)):
            return False
    return True


@pytest.mark.parametrize("name", list(CASES))
def test_a_run_that_is_killed_ends_like_one_that_is_not(report, name):
    whole, trials = report[name]["whole"], report[name]["trials"]
    assert [same(CASES[name], trial["ranks"], whole) for trial in trials] == [True] * len(trials)
    assert all(trial["kills"] for trial in trials)
    moved = network(CASES[name])
    assert not any(torch.equal(a, b) for a, b in zip(moved.parameters(), whole[0]["weights"], strict=True))


@pytest.mark.parametrize("name", list(CASES))
def test_a_step_taken_again_releases_the_same(report, name):
    repeated = 0
    for trial in report[name]["trials"]:
        for rank, undisturbed in zip(trial["ranks"], report[name]["whole"], strict=True):
            steps = {step for step, _, _ in rank["log"]}
            assert steps == set(range(N))
            once = {json.dumps(line) for line in rank["log"]}
            assert once == {json.dumps(line) for line in undisturbed["log"]}
            repeated += len(rank["log"]) - N
    assert repeated > 0


@pytest.mark.parametrize("name", list(CASES))
def test_no_participation_is_counted_twice_or_lost(report, name):
    for trial in report[name]["trials"]:
        for rank in trial["ranks"]:
            record = dm.RunRecord.from_json(rank["record"])
            assert (record.steps, record.processes) == (N, CASES[name].world)
            batches = {step: batch for step, batch, _ in rank["log"]}
            counts = np.bincount(
                np.concatenate([batches[step] for step in range(N)]).astype(int), minlength=SIZE
            )
            if record.most_participations is None:
                assert rank["counts"] == []
            else:
                assert rank["counts"] == counts.tolist()
                assert record.most_participations == counts.max() == N // EPOCH


if __name__ == "__main__":
    everything(pathlib.Path(sys.argv[1]), few if sys.argv[2] == "few" else int)
