"""Trainers in two processes (gloo): the sums of one process, and resumed bit for bit.

Run as a script by torchrun it is one of the processes.
"""

import os
import pathlib
import sys
import warnings

import pytest

import dpmech as dm

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.support.torchrun import by_two  # noqa: E402 - after the check for torch
from tests.support.trainers import SIZE, Classifier, Rows  # noqa: E402 - the same

EPOCH, N = 4, 4
BATCH = SIZE // EPOCH
CAL = dm.calibrate_sigma(dm.LambdaCGD(N, 0.5), 8.0, 1e-5, participation=dm.MinSep(EPOCH))


def trainer(folder, *, processes, callbacks=(), seeded=True, **options):
    import transformers

    from dpmech.optim.hf import Privacy, PrivateTrainer

    given = {
        "per_device_train_batch_size": BATCH // processes, "num_train_epochs": 1, "save_strategy": "steps",
        "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "report_to": "none", "disable_tqdm": True,
        "use_cpu": True, "learning_rate": 0.1, "optim": "adamw_torch", "logging_steps": 1,
    }  # fmt: skip
    return PrivateTrainer(
        model=Classifier(0.0),
        args=transformers.TrainingArguments(str(folder), **given | options),
        train_dataset=Rows(),
        eval_dataset=Rows(8, seed=5),
        callbacks=list(callbacks),
        privacy=Privacy(CAL, clip_norm=0.5, generator=1 if seeded else None, rng=2 if seeded else None),
    )


def sft(folder, *, processes, callbacks=(), seeded=True):
    """LoRA on a tiny language model, by TRL's trainer."""
    from tests.support import fine_tuning

    assert fine_tuning.SIZE // EPOCH == 6
    return fine_tuning.trainer(
        folder, CAL, held=fine_tuning.texts(8, first=500), more={"callbacks": list(callbacks)},
        privacy={} if seeded else {"generator": None, "rng": None},
        per_device_train_batch_size=6 // processes, save_strategy="steps", save_steps=2,
        eval_strategy="steps", eval_steps=2, logging_steps=1, learning_rate=0.05, optim="adamw_torch",
    )  # fmt: skip


def ended(one):
    one.run[1].close()
    trained = [param.detach().flatten() for param in one.model.parameters() if param.requires_grad]
    return torch.cat(trained)


def lightning_fit(folder, *, processes, stop=None, seeded=True):
    """Lightning's Trainer, to the end or until a step; weights and record, of this process."""
    import logging

    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torch.utils.data import DataLoader

    from dpmech.optim.lightning import PrivateTraining

    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = Classifier(0.0)

        def forward(self, **batch):
            return self.net(**batch)

        def training_step(self, batch, index):
            raise NotImplementedError

        def validation_step(self, batch, index):
            self.log("val_loss", self(**batch)["loss"], sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.1)

    class Cut(Exception):
        pass

    class At(lightning.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            if trainer.global_step == stop:
                raise Cut

    private = PrivateTraining(
        CAL,
        DataLoader(Rows(), batch_size=BATCH // processes),
        0.5,
        loss=lambda model, **batch: model(**batch)["loss"],
        folder=folder,
        **{"generator": 1, "rng": 2} if seeded else {},
    )
    module = Module()
    fit = lightning.Trainer(
        max_epochs=1, callbacks=[private, At(), ModelCheckpoint(folder, every_n_train_steps=2, save_top_k=1)],
        logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu",
        devices=processes, strategy="ddp" if processes > 1 else "auto",
    )  # fmt: skip
    try:
        fit.fit(module, private.loader, DataLoader(Rows(8, seed=5), batch_size=4), ckpt_path=private.newest())
    except Cut:
        private.run[1].close()
        return None
    record = private.run_record()
    private.run[1].close()
    return torch.cat([param.detach().flatten() for param in module.parameters()]), record


def lightning_in_a_process(folder):
    rank = int(os.environ["RANK"])
    warnings.simplefilter("ignore")
    weights, record = lightning_fit(folder / "whole", processes=2)
    assert lightning_fit(folder / "cut", processes=2, stop=3) is None
    torch.distributed.barrier()
    resumed, _ = lightning_fit(folder / "cut", processes=2, seeded=False)
    found = {"whole": weights, "resumed": resumed, "steps": record.steps, "processes": record.processes}
    torch.save(found, folder / f"{rank}.pt")


def in_a_process(folder, trainer=trainer):
    """Whole; then cut after three steps, and resumed."""
    import transformers

    warnings.simplefilter("ignore")
    rank = int(os.environ["RANK"])

    class Cut(Exception):
        pass

    class At(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise Cut

    one = trainer(folder / "whole", processes=2)
    one.train()
    one.save_model(str(folder / "model"))
    record = one.run_record()
    found = {"whole": ended(one), "steps": record.steps, "processes": record.processes}
    found["logged"] = sorted(set().union(*one.state.log_history))
    first = trainer(folder / "cut", processes=2, callbacks=[At()])
    try:
        first.train()
    except Cut:
        ended(first)
    torch.distributed.barrier()
    second = trainer(folder / "cut", processes=2, seeded=False)
    second.train(resume_from_checkpoint="auto")
    found["resumed"] = ended(second)
    torch.save(found, folder / f"{rank}.pt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("framework", ["hf", "sft"])
def test_two_processes_train_as_one(tmp_path, framework):
    if framework == "sft":
        pytest.importorskip("trl")
    by_two(__file__, str(tmp_path), framework)
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    alone = {"hf": trainer, "sft": sft}[framework](tmp_path / "alone", processes=1)
    alone.train()
    expected = ended(alone)
    for found in both:
        assert (found["steps"], found["processes"]) == (N, 2)
        torch.testing.assert_close(found["whole"], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["whole"], both[0]["whole"], rtol=0.0, atol=0.0)
        torch.testing.assert_close(found["resumed"], found["whole"], rtol=0.0, atol=0.0)
        assert not {"loss", "grad_norm", "train_loss"} & set(found["logged"])
    assert {"eval_loss", "epsilon_spent"} <= set(both[0]["logged"])
    assert dm.verify(tmp_path / "model" / "run_record.json").ok
    assert dm.RunRecord.load(tmp_path / "model" / "run_record.json").processes == 2
    private = sorted(path.name for path in (tmp_path / "whole" / "_private_run").iterdir())
    assert private == [f"checkpoint-{step}{own}.pt" for step in (0, 2, 4) for own in (".1", "")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_processes_of_lightning_train_as_one(tmp_path):
    pytest.importorskip("lightning")
    by_two(__file__, str(tmp_path), "lightning")
    both = [torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1)]
    expected, _ = lightning_fit(tmp_path / "alone", processes=1)
    for found in both:
        assert (found["steps"], found["processes"]) == (N, 2)
        torch.testing.assert_close(found["whole"], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["whole"], both[0]["whole"], rtol=0.0, atol=0.0)
        torch.testing.assert_close(found["resumed"], found["whole"], rtol=0.0, atol=0.0)
    assert dm.RunRecord.load(tmp_path / "whole" / "run_record.json").processes == 2


if __name__ == "__main__":
    {
        "hf": in_a_process,
        "sft": lambda folder: in_a_process(folder, sft),
        "lightning": lightning_in_a_process,
    }[sys.argv[2]](pathlib.Path(sys.argv[1]))
    torch.distributed.barrier()  # a process that outlives its peer's connections may be aborted by gloo
    torch.distributed.destroy_process_group()
