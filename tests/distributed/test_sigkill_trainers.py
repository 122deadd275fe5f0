"""Runs under Hugging Face's Trainer, TRL's and Lightning's that are killed at random points until they end.

Run as a script it forks the processes of all runs and kills them, as `test_sigkill.py` does for the plain
loop; the tests look at what is left.
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

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")

from tests.support.trainers import SIZE, Classifier, Rows, masked  # noqa: E402 - after the check for torch

N, EPOCH, EVERY, KILLS = 12, 4, 3, 3
FEW, TRIALS = 2, 10


def frameworks():
    """Those that are installed."""
    found = []
    for name, package in (("hf", "transformers"), ("lightning", "lightning"), ("trl", "trl")):
        try:
            __import__(package)
        except ImportError:
            continue
        found.append(name)
    return found


# ---- one process of a run


def log_of(folder):
    handle = os.open(folder / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def released(step, batch, params):
        """One line for every step: which batch, and what was released."""
        grads = b"".join(param.grad.numpy().tobytes() for param in params)
        line = json.dumps([step, batch, hashlib.sha256(grads).hexdigest()])
        os.write(handle, (line + "\n").encode())

    return released


def train_hf(cal, folder, tell):
    from transformers import TrainerCallback, TrainingArguments

    from dpmech.optim.hf import Privacy, PrivateTrainer
    from dpmech.optim.hf.arguments import newest

    released = log_of(folder)
    fresh = newest(folder / "out") is None

    class Tell(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            tell()

        def on_optimizer_step(self, args, state, control, model=None, **kwargs):
            step = trainer.run[2].steps_taken - 1
            released(step, trainer.run[2].sampler.indices(step).tolist(), model.parameters())
            tell()

        def on_save(self, args, state, control, **kwargs):
            tell()

    trainer = PrivateTrainer(
        model=Classifier(),
        args=TrainingArguments(
            str(folder / "out"),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=SIZE // EPOCH // 2,
            num_train_epochs=N // EPOCH,
            save_strategy="steps",
            save_steps=EVERY,
            save_total_limit=1,
            eval_strategy="steps",
            eval_steps=2,
            optim="adamw_torch",
            learning_rate=0.1,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            logging_strategy="no",
        ),
        train_dataset=Rows(),
        eval_dataset=Rows(8, seed=5),
        data_collator=masked,
        callbacks=[Tell()],
        # Otherwise the keys have to come from the checkpoint.
        privacy=Privacy(cal, clip_norm=1.0, generator=7 if fresh else None, rng=8 if fresh else None),
    )
    tell()
    trainer.train(resume_from_checkpoint="auto")
    return trainer.model, trainer.run[1]


def train_trl(cal, folder, tell):
    """LoRA, with autocast, checkpointing and the noise of NEFTune, which is drawn in every step."""
    import datasets
    import transformers

    from dpmech.optim.hf.arguments import newest
    from tests.support.fine_tuning import SIZE as TEXTS
    from tests.support.fine_tuning import texts, trainer

    assert TEXTS == SIZE
    datasets.disable_progress_bars()
    released = log_of(folder)
    fresh = newest(folder / "out") is None

    class Tell(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            tell()

        def on_optimizer_step(self, args, state, control, model=None, **kwargs):
            step = one.run[2].steps_taken - 1
            trained = [param for param in model.parameters() if param.requires_grad]
            released(step, one.run[2].sampler.indices(step).tolist(), trained)
            tell()

        def on_save(self, args, state, control, **kwargs):
            tell()

    one = trainer(
        folder / "out",
        cal,
        held=texts(8, first=50),
        privacy={"clip_norm": 1.0}
        | ({"generator": 7, "rng": 8} if fresh else {"generator": None, "rng": None}),
        more={"callbacks": [Tell()]},
        per_device_train_batch_size=2,
        gradient_accumulation_steps=SIZE // EPOCH // 2,
        num_train_epochs=N // EPOCH,
        save_strategy="steps",
        save_steps=EVERY,
        save_total_limit=1,
        eval_strategy="steps",
        eval_steps=2,
        optim="adamw_torch",
        bf16=True,
        activation_checkpointing=True,
        neftune_noise_alpha=5.0,
        logging_strategy="no",
    )
    tell()
    one.train(resume_from_checkpoint="auto")
    return torch.nn.ParameterList([p for p in one.model.parameters() if p.requires_grad]), one.run[1]


def train_lightning(cal, folder, tell):
    import logging

    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader

    from dpmech.optim.lightning import PrivateTraining

    logging.getLogger("lightning").setLevel(logging.ERROR)
    released = log_of(folder)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Classifier()

        def forward(self, **batch):
            return self.net(**batch)

        def training_step(self, batch, index):
            raise NotImplementedError

        def validation_step(self, batch, index):
            self.log("loss", self(**batch)["loss"])

        def configure_optimizers(self):
            adam = torch.optim.Adam(self.parameters(), lr=0.1)
            return [adam], [torch.optim.lr_scheduler.ExponentialLR(adam, 0.9)]

    class Tell(lightning.Callback):
        def on_train_batch_start(self, *_):
            tell()

        def on_train_batch_end(self, trainer, module, *_):
            step = private.run[2].steps_taken - 1
            released(step, private.run[2].sampler.indices(step).tolist(), module.parameters())
            tell()

    def made(**keys):
        return PrivateTraining(
            cal,
            DataLoader(Rows(), batch_size=SIZE // EPOCH, collate_fn=masked),
            1.0,
            loss=lambda model, **batch: model(**batch)["loss"],
            folder=folder / "out",
            max_physical_batch_size=2,
            **keys,
        )

    private = made()
    if private.newest() is None:
        private = made(generator=7, rng=8)
    module = Module()
    tell()
    trainer = lightning.Trainer(
        max_epochs=N // EPOCH,
        callbacks=[private, Tell(), ModelCheckpoint(folder / "out", every_n_train_steps=EVERY, save_top_k=1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accelerator="cpu",
        val_check_interval=2,
    )
    trainer.fit(module, private.loader, DataLoader(Rows(8, seed=5), batch_size=4), ckpt_path=private.newest())
    return module.net, private.run[1]


TRAIN = {"hf": train_hf, "lightning": train_lightning, "trl": train_trl}


def train(framework, cal, folder, tell):
    folder.mkdir(exist_ok=True)
    warnings.simplefilter("ignore")
    model, optimizer = TRAIN[framework](cal, folder, tell)
    found = {
        "weights": [param.detach() for param in model.parameters()],
        "record": optimizer.run_record().to_json(),
    }
    torch.save(found, folder / "end.part")
    (folder / "end.part").replace(folder / "end.pt")
    optimizer.close()


# ---- killing


def attempt(framework, cal, folder, point=None, delay=0.0):
    """Run to the end, or until it has told of `point` things, and then kill; (killed, things told)."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            train(framework, cal, folder, lambda: os.write(writing, b"."))
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - a fork must never go on with its parent's code
            (folder / "error").write_text(repr(error))
        finally:
            os._exit(1)
    os.close(writing)
    told, reached = 0, False
    while data := os.read(reading, 1 if point else 4096):
        told += len(data)
        reached = told == point
        if reached:
            select.select([], [], [], delay)
            os.kill(child, signal.SIGKILL)
            break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(reading)
    if code not in {0, -signal.SIGKILL}:
        raise RuntimeError(f"{code}: {(folder / 'error').read_text()}")
    return code == -signal.SIGKILL, told


def left(folder):
    found = torch.load(folder / "end.pt", weights_only=True)
    lines = (folder / "log").read_text().splitlines()
    found["log"] = [json.loads(line) for line in lines if line.endswith("]")]
    return found


def everything(home, framework, trials, times):
    chance = random.Random(1)
    cal = dm.calibrate_sigma(
        dm.LambdaCGD(N, 0.5), 8.0, 1e-3, participation=dm.BallsInBins(EPOCH), method=dm.methods.Rdp()
    )
    train(framework, cal, home / "warm", lambda: None)  # what is imported late, once and before the forks
    points = attempt(framework, cal, home / "whole")[1] if (home / "whole").mkdir() is None else 0
    report = {"whole": left(home / "whole"), "trials": []}
    for trial in range(trials):
        folder = home / str(trial)
        folder.mkdir()
        kills = 0
        for _ in range(times):
            # Delays end within a step or a save.
            kills += attempt(framework, cal, folder, chance.randrange(1, points - 2), chance.random() * 0.03)[
                0
            ]
        attempt(framework, cal, folder)
        report["trials"].append({"kills": kills, "end": left(folder)})
    torch.save(report, home / "report.pt")


# ---- what is left


def report_of(framework, trials):
    with tempfile.TemporaryDirectory() as name:
        done = subprocess.run(
            [sys.executable, __file__, name, framework, str(trials), str(KILLS)],
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1500,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return torch.load(pathlib.Path(name) / "report.pt", weights_only=True)


def check(report, trials):
    whole = report["whole"]
    assert len(report["trials"]) == trials
    again = 0
    for trial in report["trials"]:
        assert trial["kills"]
        end = trial["end"]
        resumed = dm.RunRecord.from_json(end["record"])
        # How often it resumed from a saved state is the one thing that differs.
        if resumed.checkpoint_history is not None:
            once = dataclasses.replace(resumed.checkpoint_history, loads=0)
            resumed = dataclasses.replace(resumed, checkpoint_history=once)
        assert resumed == dm.RunRecord.from_json(whole["record"])
        assert all(torch.equal(a, b) for a, b in zip(end["weights"], whole["weights"], strict=True))
        # A step that was taken again released the same, from the same batch.
        assert {step for step, _, _ in end["log"]} == set(range(N))
        assert {json.dumps(line) for line in end["log"]} == {json.dumps(line) for line in whole["log"]}
        again += len(end["log"]) - N
    assert all(torch.isfinite(weight).all() for weight in whole["weights"])
    return again


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["hf", "lightning", "trl"])
@pytest.mark.parametrize("trials", [FEW, pytest.param(TRIALS, marks=pytest.mark.exhaustive)])
def test_a_run_that_is_killed_ends_like_one_that_is_not(framework, trials):
    if framework not in frameworks():
        pytest.skip(f"{framework} is not installed")
    report = report_of(framework, trials)
    assert check(report, trials) > 0
    # Every step released something else; what was trained is no longer what it was at the start.
    assert len({released for _, _, released in report["whole"]["log"]}) == N
    if framework != "trl":
        start = Classifier().parameters()
        assert not any(torch.equal(a, b) for a, b in zip(start, report["whole"]["weights"], strict=True))


def test_what_differs_is_seen():
    """The comparison itself: other weights, another release, a lost step."""
    log = [[step, [1], "a"] for step in range(N)]
    cal = dm.calibrate_sigma(dm.Identity(2), 1.0, 1e-3)
    record = dm.RunRecord(
        certificate=cal.certificate(1.0, 1.0),
        steps=0,
        executed=dm.executed_epsilon(cal, 0),
        sampler=dm.certificates.Randomness("a", "0" * 64, False),
        noise=dm.certificates.Randomness("a", "0" * 64, False),
        most_participations=0,
        processes=1,
        stopped_by_plan=False,
        uniqueness=dm.certificates.Uniqueness.FLATTENED,
    ).to_json()
    weights = [param.detach() + 1.0 for param in Classifier().parameters()]
    whole = {"weights": weights, "record": record, "log": log}
    report = {"whole": whole, "trials": [{"kills": 1, "end": dict(whole)}]}
    assert check(report, 1) == 0
    for faulty in (
        {"weights": [weight + 1e-6 for weight in weights]},
        {"log": [*log, [3, [1], "b"]]},
        {"log": log[:-1]},
    ):
        with pytest.raises(AssertionError):
            check({"whole": whole, "trials": [{"kills": 1, "end": whole | faulty}]}, 1)


if __name__ == "__main__":
    everything(pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
