"""The trainers of other packages, registered for the check of neighbouring data sets."""

import importlib.util
import logging
import tempfile

import torch
from torch.utils.data import DataLoader

from tests.property.neighbours.check import Rows
from tests.property.neighbours.registry import close_earlier, ended, feature, loss_of_one


class _Named(Rows):
    """Records as dicts, as a Trainer collates them."""

    def __getitem__(self, index):
        return {"inputs": super().__getitem__(index)}

    def __getitems__(self, indices):
        return [{"inputs": record} for record in super().__getitems__(indices)]


def _collate(rows):
    return {"inputs": torch.stack([row["inputs"] for row in rows])}


class _WithLoss(torch.nn.Module):
    """A model that computes its loss, as those of transformers do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return {"loss": self.inner(inputs).mean()}


def _named_loss(model, inputs):
    return model(inputs=inputs)["loss"]


if importlib.util.find_spec("transformers") is not None:
    import transformers

    from dpmech.optim.hf import Privacy, PrivateTrainer

    def _trainer(run, folder, **options):
        given = {
            "output_dir": folder,
            "max_steps": run.claim.strategy.n,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "log_level": "error",
            "use_cpu": True,
            "learning_rate": 0.1,
            "optim": "sgd",
        } | options
        rng = {"rng": run.seed} if run.claim.participation.random else {}
        return PrivateTrainer(
            model=_WithLoss(run.kind.model()),
            args=transformers.TrainingArguments(**given),
            train_dataset=_Named(run.records),
            data_collator=_collate,
            privacy=Privacy(
                run.claim.certificate(run.clip, run.batch),
                generator=1,
                loss=_named_loss,
                log_epsilon=False,
                **rng,
            ),
        )

    @feature("Trainer", "integration: hf", slow=True, at=("last",))
    def _(run):
        close_earlier()
        with tempfile.TemporaryDirectory() as folder:
            trainer = _trainer(run, folder, per_device_train_batch_size=3)
            trainer.train()
            return ended(*trainer.run)

    @feature("Trainer, accumulated", "integration: hf", slow=True, at=("last",))
    def _(run):
        close_earlier()
        with tempfile.TemporaryDirectory() as folder:
            trainer = _trainer(run, folder, per_device_train_batch_size=1, gradient_accumulation_steps=3)
            trainer.train()
            return ended(*trainer.run)

    class _Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                control.should_save = control.should_training_stop = True

    @feature("Trainer, resumed", "integration: hf", slow=True, at=("last",))
    def _(run):
        close_earlier()
        with tempfile.TemporaryDirectory() as folder:
            options = {"per_device_train_batch_size": 3, "save_strategy": "steps", "save_steps": 100}
            trainer = _trainer(run, folder, **options)
            trainer.add_callback(_Stop())
            trainer.train()
            trainer.run[1].close()
            trainer = _trainer(run, folder, **options)
            trainer.train(resume_from_checkpoint=True)
            return ended(*trainer.run)


if importlib.util.find_spec("lightning") is not None:
    import lightning

    from dpmech.optim.lightning import PrivateTraining

    class _Module(lightning.LightningModule):
        def __init__(self, inner, backward=None):
            super().__init__()
            self.inner = inner
            self.automatic_optimization = backward is None
            self.by_hand = backward

        def forward(self, inputs):
            return self.inner(inputs)

        def training_step(self, batch, index):
            self.by_hand.backward(batch)
            self.optimizers().step()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def _fitted(run, *, by_hand=False):
        close_earlier()
        for name in ("lightning.pytorch", "lightning.fabric"):
            logging.getLogger(name).setLevel(logging.ERROR)
        rng = {"rng": run.seed} if run.claim.participation.random else {}
        private = PrivateTraining(
            run.claim,
            DataLoader(run.data, collate_fn=torch.stack),
            run.clip,
            loss=loss_of_one,
            loss_takes="batch_of_one",
            expected_batch_size=run.batch,
            generator=1,
            log_epsilon=False,
            **rng,
        )
        trainer = lightning.Trainer(
            max_steps=run.claim.strategy.n,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            accelerator="cpu",
            callbacks=[private],
        )
        module = _Module(run.kind.model(), private if by_hand else None)
        trainer.fit(module, private.loader)
        return ended(*private.run)

    @feature("Lightning", "integration: lightning", slow=True, at=("last",))
    def _(run):
        return _fitted(run)

    @feature("Lightning, manual optimization", "integration: lightning", slow=True, at=("last",))
    def _(run):
        return _fitted(run, by_hand=True)
