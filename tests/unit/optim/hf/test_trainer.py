"""The Trainer of transformers compared with the loop of make_private, and the bypasses that it refuses."""

import json
import stat

import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset

import dpmech as dm
from dpmech.optim import PerLayerClipping, make_private
from tests.support import saved
from tests.support.trainers import SIZE, Classifier, Rows, masked

transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("dpmech.optim.hf")

from transformers import TrainerCallback, TrainingArguments  # noqa: E402 - after the check for it

N, EPOCH = 12, 4
BATCH = SIZE // EPOCH
CAL = dm.calibrate_sigma(dm.LambdaCGD(N, 0.5), 8.0, 1e-5, participation=dm.MinSep(EPOCH))


def arguments(folder, **options):
    given = {
        "output_dir": str(folder),
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 3,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 2,
        "learning_rate": 0.1,
        "optim": "sgd",
    }
    return TrainingArguments(**given | options)


def trainer(
    folder, *, cal=CAL, privacy=None, kind=None, model=None, data=None, collate=None, more=None, **options
):
    given = {"clip_norm": 0.5, "generator": 1, "rng": 2} | (privacy or {})
    return (kind or hf.PrivateTrainer)(
        model=Classifier(0.0) if model is None else model,
        args=arguments(folder, **options),
        train_dataset=Rows() if data is None else data,
        data_collator=collate,
        privacy=hf.Privacy(cal, **given),
        **(more or {}),
    )


def in_half(rows):
    return {
        "inputs": torch.stack([row["inputs"] for row in rows]).bfloat16(),
        "labels": torch.stack([row["labels"] for row in rows]),
    }


@pytest.mark.parametrize("mode", ["auto", "ghost"])
def test_weights_in_half_precision(tmp_path, mode):
    one = trainer(
        tmp_path, model=Classifier(0.0).bfloat16(), collate=in_half, privacy={"clipping_mode": mode}
    )
    one.train()
    assert one.run_record().steps == N
    assert ended(one).dtype == torch.bfloat16


def ended(one):
    found = torch.cat([param.detach().flatten() for param in one.model.parameters()])
    one.run[1].close()
    return found


def by_hand(cal=CAL, size=BATCH, **options):
    """The loop of make_private, with the schedule that a Trainer has by default."""
    model = Classifier(0.0)
    # As in a Trainer: decayed parameters come first, and noise follows the order of parameters.
    groups = [
        [p for name, p in model.named_parameters() if ("bias" in name) == late] for late in (False, True)
    ]
    private, optimizer, loader = make_private(
        model,
        torch.optim.SGD([{"params": group} for group in groups], lr=0.1),
        DataLoader(Rows(), batch_size=size),
        cal,
        0.5,
        loss=lambda model, **batch: model(**batch)["loss"],
        generator=1,
        rng=2,
        **options,
    )
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (N - step) / N)
    while optimizer.steps_left:
        for batch in loader:
            private.backward(**batch)
            optimizer.step()
            rates.step()
    optimizer.close()
    return torch.cat([param.detach().flatten() for param in model.parameters()])


@pytest.mark.parametrize("name", ["min-sep", pytest.param("poisson", marks=pytest.mark.slow)])
def test_a_trainer_is_the_loop_of_make_private(name, tmp_path):
    cal = CAL if name == "min-sep" else saved.calibration(name)
    size = BATCH if name == "min-sep" else 5
    one = trainer(tmp_path, cal=cal, per_device_train_batch_size=size, max_steps=N)
    result = one.train()
    assert result.global_step == N == one.run[2].steps_taken
    found = ended(one)
    torch.testing.assert_close(found, by_hand(cal, size), rtol=0.0, atol=0.0)
    assert result.training_loss != result.training_loss  # NaN: it is not private


def test_blocks_follow_the_model_if_the_trainer_groups_parameters(tmp_path):
    """The default AdamW has decayed parameters first; biases are last there, and interleaved in the model."""
    names = [name for name, _ in Classifier(0.0).named_parameters()]
    norms = [10.0 ** -(index + 3) for index in range(len(names))]
    for layers in (None, {name: index for index, name in enumerate(names)}):
        one = trainer(
            tmp_path,
            cal=dm.calibrate_sigma(dm.Identity(N), 8.0, 1e-5, dataset_size=len(Rows())),
            privacy={"clip_norm": None, "clipping": PerLayerClipping(norms, layers)},
            optim="adamw_torch",
            per_device_train_batch_size=1,
            max_steps=1,
        )
        take, sums = one.run[1]._batch.take, []
        one.run[1]._batch.take = lambda take=take, to=sums: [to.append(x.clone()) or x for x in take()]
        handed = [id(param) for group in one.run[1].param_groups for param in group["params"]]
        place = {name: handed.index(id(param)) for name, param in one.model.named_parameters()}
        assert list(place.values()) != sorted(place.values())
        one.train()
        one.run[1].close()
        for name, norm in zip(names, norms, strict=True):
            assert float(sums[place[name]].norm()) == pytest.approx(norm, rel=1e-3)


def test_accumulation_is_physical_batches_of_one_batch(tmp_path):
    one = trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=3)
    one.train()
    assert one.run[2].physical_batch_size == 2
    assert one.state.global_step == N
    torch.testing.assert_close(ended(one), by_hand(max_physical_batch_size=2), rtol=0.0, atol=0.0)
    with pytest.raises(
        dm.exceptions.CertificateError,
        match=r"per_device_train_batch_size=2 times gradient_acc.*_steps=2 is 4, which under",
    ):
        trainer(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=2).train()
    with pytest.raises(
        dm.exceptions.CertificateError, match=r"_steps=1 is 4, and the certificate's .* is 6: two decl"
    ):
        trainer(tmp_path, cal=CAL.certificate(0.5, BATCH), per_device_train_batch_size=4).train()


def test_physical_batches_of_the_callers_choice(tmp_path):
    one = trainer(tmp_path, privacy={"max_physical_batch_size": 4})
    assert one.run[2].physical_batch_size == 4
    one.run[1].close()


@pytest.mark.slow
def test_max_grad_norm_has_no_effect(tmp_path):
    """A Trainer clips param.grad, once per update: the noise would be clipped too."""
    one = trainer(tmp_path, max_grad_norm=1.0, learning_rate=1e-3)
    large = []

    class Look(TrainerCallback):
        def on_optimizer_step(self, args, state, control, model=None, **kwargs):
            large.append(max(float(param.grad.abs().max()) for param in model.parameters()))

    one.add_callback(Look())
    one.train()
    one.run[1].close()
    assert len(large) == N
    for options, privacy in (({"max_grad_norm": 0.3}, {}), ({"max_grad_norm": 0.3}, {"clip_norm": None})):
        with pytest.raises(dm.InvalidParameterError, match="max_grad_norm must be left out"):
            trainer(tmp_path, privacy=privacy, **options)


@pytest.mark.slow
def test_batches_without_examples(tmp_path):
    cal = dm.calibrate_sigma(
        dm.Identity(8), 8.0, 1e-3, participation=dm.Poisson(1 / SIZE), expected_batch_size=1.0
    )
    one = trainer(tmp_path, cal=cal, per_device_train_batch_size=1, max_steps=8, collate=masked)
    batches = [len(one.run[2].sampler.indices(step)) for step in range(8)]
    assert 0 in batches
    assert one.train().global_step == 8
    assert torch.isfinite(ended(one)).all()


def test_a_run_that_ends_early_is_charged_the_full_budget(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = state.global_step == 5
            return control

    one = trainer(tmp_path, more={"callbacks": [Stop()]})
    one.train()
    record = one.run_record()
    assert record.steps == 5
    assert record.executed == CAL.achieved
    with pytest.raises(dm.UnsupportedCombinationError, match=r"train\(\) again, after 5 steps"):
        one.train()
    one.run[1].close()


@pytest.mark.slow
def test_leaving_an_epoch_early_loses_no_batch(tmp_path):
    class Leave(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_epoch_stop = state.global_step == 2
            return control

    one = trainer(tmp_path, more={"callbacks": [Leave()]})
    one.train()
    assert one.state.global_step == one.run[2].steps_taken
    one.run[1].close()


def test_more_steps_than_certified_are_refused_before_the_first(tmp_path):
    one = trainer(tmp_path, num_train_epochs=4)
    with pytest.raises(dm.InvalidParameterError, match="at most the 12 steps that are certified"):
        one.train()
    assert one.run[2].steps_taken == 0
    one.run[1].close()


def test_fewer_steps_than_certified_are_told_before_the_first(tmp_path, caplog):
    texts = []
    for steps in (2, N):
        caplog.clear()
        one = trainer(tmp_path / str(steps), max_steps=steps, save_strategy="no")
        one.train()
        one.run[1].close()
        texts.append([row.getMessage() for row in caplog.records if row.name == "dpmech.optim"])
    told = (
        "2 of the 12 certified steps, with the noise of 12 steps and the whole budget; calibrate for 2 steps"
    )
    assert [told in text for text in texts[0]].count(True) == 1
    assert not any("certified steps" in text for text in texts[1])


# ---- what is logged and saved


def test_raw_values_are_logged_only_on_request(tmp_path):
    more = {"eval_strategy": "epoch", "skip_memory_metrics": False}
    one = trainer(tmp_path, more={"eval_dataset": Rows(8, seed=5)}, **more)
    result = one.train()
    logged = set().union(*one.state.log_history)
    assert not [name for name in {*logged, *result.metrics} if "_mem_" in name]
    assert not logged & {"loss", "grad_norm", "train_loss", "total_flos", "num_input_tokens_seen"}
    assert {"learning_rate", "epsilon_spent", "eval_loss"} <= logged
    assert one.state.total_flos == 0
    spent = [row["epsilon_spent"] for row in one.state.log_history if "epsilon_spent" in row]
    assert spent == sorted(spent)
    assert spent[-1] == CAL.achieved.upper
    one.run[1].close()
    one = trainer(tmp_path, privacy={"log_raw": True, "log_epsilon": False})
    result = one.train()
    logged = set().union(*one.state.log_history)
    assert {"not_private_loss", "not_private_train_loss"} <= logged
    assert not logged & {"loss", "grad_norm", "epsilon_spent"}
    assert 0.1 < result.training_loss < 5.0
    one.run[1].close()


def test_evaluation_on_the_training_data_is_refused(tmp_path):
    data = Rows()
    with pytest.raises(dm.UnsupportedCombinationError, match="eval_dataset is the training data"):
        trainer(tmp_path, data=data, more={"eval_dataset": data})
    turned = [data[index] for index in reversed(range(len(data)))]
    for held in (Subset(data, [3]), {"other": Rows(8, seed=5), "train": data}, Rows(), turned):
        with pytest.raises(dm.UnsupportedCombinationError, match="eval_dataset is the training data"):
            trainer(tmp_path, data=data, more={"eval_dataset": held})


def test_evaluation_on_the_training_data_is_refused_later_too(tmp_path):
    """Values can also be set other than by the names of the arguments."""
    data = Rows()
    one = trainer(tmp_path, data=data, more={"eval_dataset": Rows(8, seed=5)})
    assert "eval_loss" in one.evaluate()
    for evaluate in (one.evaluate, one.predict):
        for held in (data, Subset(data, range(4)), ConcatDataset([Rows(8, seed=5), data])):
            with pytest.raises(dm.UnsupportedCombinationError, match="is the training data"):
                evaluate(held)
    one.eval_dataset = Subset(data, range(8))
    with pytest.raises(dm.UnsupportedCombinationError, match="training data"):
        one.evaluate()


@pytest.mark.parametrize(
    "steering",
    [
        {"load_best_model_at_end": True, "save_strategy": "steps", "save_steps": 2},
        {"lr_scheduler_type": "reduce_lr_on_plateau"},
    ],
)
def test_releases_do_not_depend_on_the_training_loss(steering, tmp_path):
    """Raw values may be logged if requested; selecting by them is a release without noise."""
    data = Rows()
    steps = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "eval_loss"}
    raw = {"data": data, "privacy": {"log_raw": True}, "more": {"eval_dataset": Subset(data, range(8))}}
    with pytest.raises(dm.UnsupportedCombinationError, match="would select by it"):
        trainer(tmp_path, **raw, **steps, **steering)
    one = trainer(tmp_path, **raw)
    assert "eval_loss" in one.evaluate()
    one.add_callback(transformers.EarlyStoppingCallback())
    with pytest.raises(dm.UnsupportedCombinationError, match="EarlyStoppingCallback would select by it"):
        one.evaluate()
    held = {"data": data, "more": {"eval_dataset": Rows(8, seed=5)}}
    trainer(tmp_path, **held, **steps, **steering)


@pytest.mark.slow
def test_the_model_is_saved_under_its_names_with_a_record(tmp_path):
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, attn_implementation="eager",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip

    class Texts(Rows):
        def __getitem__(self, index):
            words = torch.randint(20, (5,), generator=torch.Generator().manual_seed(index))
            return {"input_ids": words, "labels": words}

    torch.manual_seed(0)
    cal = dm.calibrate_sigma(dm.Identity(2), 8.0, 1e-3, dataset_size=SIZE)
    one = trainer(
        tmp_path / "out", cal=cal, model=transformers.GPT2LMHeadModel(config), data=Texts(), max_steps=2
    )
    one.train()
    one.save_model(str(tmp_path / "model"))
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    for (name, one_tensor), (other, other_tensor) in zip(
        one.model.state_dict().items(), again.state_dict().items(), strict=True
    ):
        assert name == other
        torch.testing.assert_close(one_tensor, other_tensor, rtol=0.0, atol=0.0)
    record = dm.RunRecord.load(tmp_path / "model" / "run_record.json")
    assert (record.steps, record.certificate.sigma) == (2, cal.sigma)
    one.run[1].close()


# ---- checkpoints


@pytest.mark.slow
def test_the_best_model_is_loaded_at_the_end(tmp_path):
    """By evaluations on other data; the run is charged the full budget, and its record states all steps."""
    one = trainer(
        tmp_path,
        save_strategy="steps",
        save_steps=4,
        eval_strategy="steps",
        eval_steps=4,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        learning_rate=5.0,
        more={"eval_dataset": Rows(seed=1)},
    )
    one.train()
    losses = {row["step"]: row["eval_loss"] for row in one.state.log_history if "eval_loss" in row}
    best = min(losses, key=losses.get)
    assert len(losses) == 3
    assert best != N  # so that another state than the last must have been loaded
    assert one.state.best_model_checkpoint.endswith(f"checkpoint-{best}")
    assert one.evaluate()["eval_loss"] == pytest.approx(losses[best], rel=1e-6)
    assert one.run[1].run_record().steps == N
    one.run[1].close()


def test_a_checkpoint_folder_holds_no_secret(tmp_path):
    one = trainer(tmp_path, save_strategy="steps", save_steps=4, save_total_limit=2)
    one.train()
    one.run[1].close()
    folders = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert folders == ["checkpoint-12", "checkpoint-8"]
    private = sorted((tmp_path / "_private_run").iterdir())
    assert [path.name for path in private] == ["checkpoint-12.pt", "checkpoint-8.pt"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert stat.S_IMODE((tmp_path / "_private_run").stat().st_mode) == 0o700
    names = {path.name for path in (tmp_path / "checkpoint-8").iterdir()}
    assert not names & {"optimizer.pt", "scheduler.pt"}
    key = torch.load(private[0])["optimizer"]["dpmech"]["stream"]
    assert key
    state = json.loads((tmp_path / "checkpoint-8" / "trainer_state.json").read_text())
    assert state["global_step"] == 8


def resumed(folder, stop, *, disturb=False, **options):
    """Train until a step, and resume with another trainer."""

    class Killed(Exception):
        pass

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == stop:
                raise Killed

    given = {
        "model": Classifier(0.3), "collate": masked, "optim": "adamw_torch", "save_strategy": "steps",
        "save_steps": 3, "eval_strategy": "steps", "eval_steps": 2,
    }  # fmt: skip
    first = trainer(folder, more={"callbacks": [Kill()], "eval_dataset": Rows(8, seed=5)}, **given | options)
    with pytest.raises(Killed):
        first.train()
    first.run[1].close()
    # Keys must come from the checkpoint; global state must have no effect.
    torch.manual_seed(99)
    second = trainer(
        folder,
        privacy={"generator": None, "rng": None},
        **given | options | {"model": Classifier(0.3)} | ({"eval_on_start": True} if disturb else {}),
        more={"eval_dataset": Rows(8, seed=5)},
    )
    result = second.train(resume_from_checkpoint="auto")
    assert result.global_step == N
    epochs = [row["epoch"] for row in second.state.log_history]
    return ended(second), epochs


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    whole = trainer(
        tmp_path / "whole", model=Classifier(0.3), collate=masked, optim="adamw_torch", save_strategy="no"
    )
    whole.train()
    expected = ended(whole)
    for stop in (1, 7):  # before the first checkpoint of a step, and in the middle of an epoch
        found, epochs = resumed(tmp_path / str(stop), stop, disturb=stop == 7)
        torch.testing.assert_close(found, expected, rtol=0.0, atol=0.0)
        assert epochs[-1] == 3.0


@pytest.mark.slow
def test_the_run_of_a_checkpoint_is_checked(tmp_path):
    first = trainer(tmp_path, save_strategy="steps", save_steps=4)
    first.train()
    first.run[1].close()
    with pytest.raises(dm.UnsupportedCombinationError, match="holds checkpoint-12 of another run"):
        trainer(tmp_path, save_strategy="steps").train()
    again = {"privacy": {"generator": None, "rng": None}, "save_strategy": "steps", "save_steps": 4}
    middle = str(tmp_path / "checkpoint-4")
    other = trainer(tmp_path, **again, learning_rate=0.05)
    with pytest.raises(dm.exceptions.CertificateError, match=r"learning_rate 0\.1 -> 0\.05"):
        other.train(middle)
    other.run[1].close()
    other = trainer(tmp_path, **again, data=Rows(seed=8))
    with pytest.raises(dm.exceptions.CertificateError, match="of another run"):
        other.train(middle)
    other.run[1].close()
    # Trainer writes one file after the other: an incomplete checkpoint is ignored.
    (tmp_path / "checkpoint-12" / "trainer_state.json").write_text('{"epoch": 3.0, "glob')
    (tmp_path / "_private_run" / "checkpoint-8.pt").unlink()
    with pytest.raises(dm.InvalidParameterError, match=r"a complete checkpoint.*newest is .*checkpoint-4"):
        trainer(tmp_path, **again).train(str(tmp_path / "checkpoint-12"))
    last = trainer(tmp_path, **again)
    assert last.train(resume_from_checkpoint=True).global_step == N
    assert last.run_record().checkpoint_history.loads == 1
    assert (
        last.run_record().checkpoint_history.settings == dm.certificates.CheckpointMatch.SAME
    )  # its schedule was compared
    last.run[1].close()
    with pytest.raises(dm.InvalidParameterError, match=r"or 'auto': .* holds no complete checkpoint"):
        trainer(tmp_path / "empty", **again).train(resume_from_checkpoint=True)


# ---- refusals, by name

REFUSED = {
    "fp16": {"fp16": True},
    "include_num_input_tokens_seen": {"include_num_input_tokens_seen": True},
    "train_sampling_strategy": {"train_sampling_strategy": "group_by_length"},
    "torch_compile": {"torch_compile": True},
    "enable_jit_checkpoint": {"enable_jit_checkpoint": True},
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_would_bypass_privacy_are_refused(name, tmp_path, monkeypatch):
    args = arguments(tmp_path)
    for key, value in REFUSED[name].items():
        monkeypatch.setattr(args, key, value)
    monkeypatch.setattr(
        transformers.Trainer, "__init__", lambda self, args, **_: vars(self).update(args=args)
    )
    with pytest.raises(dm.UnsupportedCombinationError, match=name):
        hf.PrivateTrainer(args=args, privacy=hf.Privacy(CAL))


@pytest.mark.parametrize(
    ("name", "define"),
    [
        ("training_step", lambda self, model, inputs, count=None: None),
        ("compute_loss", lambda self, model, inputs, **_: None),
        ("_get_train_sampler", lambda self, data=None: None),
        ("get_train_dataloader", lambda self: None),
        ("_prepare_inputs", lambda self, inputs: inputs),
    ],
)
def test_methods_that_would_bypass_privacy_are_refused(name, define, tmp_path):
    kind = type("Mine", (hf.PrivateTrainer,), {name: define})
    rest = "of a batch" if name == "compute_loss" else "which .*; or your own loop, with make_private"
    with pytest.raises(dm.UnsupportedCombinationError, match=f"Mine defines {name}, {rest}"):
        trainer(tmp_path, kind=kind)


@pytest.mark.slow
def test_a_custom_loss_may_be_used_with_compute_loss(tmp_path):
    kind = type("Mine", (hf.PrivateTrainer,), {"compute_loss": lambda self, model, inputs, **_: None})
    one = trainer(tmp_path, kind=kind, privacy={"loss": hf.own_loss})
    assert one.train().global_step == N
    one.run[1].close()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(Rows())


def test_unsupported_set_ups_are_refused(tmp_path):
    with pytest.raises(dm.UnsupportedCombinationError, match="Stream is an iterable dataset"):
        trainer(tmp_path, data=Stream(), max_steps=N).train()
    with pytest.raises(dm.UnsupportedCombinationError, match="model_init"):
        hf.PrivateTrainer(
            model_init=Classifier.plain,
            args=arguments(tmp_path),
            train_dataset=Rows(),
            privacy=hf.Privacy(CAL),
        )
    with pytest.raises(dm.UnsupportedCombinationError, match="compute_loss_func"):
        trainer(tmp_path, more={"compute_loss_func": nn.CrossEntropyLoss()})
    with pytest.raises(dm.InvalidParameterError, match=r"privacy must be a dpmech\.optim\.hf\.Privacy"):
        hf.PrivateTrainer(model=Classifier(), privacy=CAL)
    with pytest.raises(dm.InvalidParameterError, match="train_dataset must be a dataset"):
        hf.PrivateTrainer(model=Classifier(), args=arguments(tmp_path), privacy=hf.Privacy(CAL)).train()
    bins = saved.calibration("bins moments")
    with pytest.raises(dm.DpmechError, match="drop_last"):
        trainer(tmp_path, cal=bins, dataloader_drop_last=True).train()


def test_another_trainer_is_noticed(monkeypatch, tmp_path):
    monkeypatch.delattr(transformers.Trainer, "_clip_grad_norm")
    with pytest.raises(dm.UnsupportedCombinationError, match=r"has no _clip_grad_norm.*transformers 5"):
        trainer(tmp_path)


def test_extra_steps_of_the_trainer_are_detected(tmp_path):
    one = trainer(tmp_path)

    class Twice(TrainerCallback):
        def on_step_end(self, args, state, control, optimizer=None, **kwargs):
            optimizer.step()

    one.add_callback(Twice())
    with pytest.raises(dm.UnsupportedCombinationError, match="without a batch"):
        one.train()
    one.run[1].close()


@pytest.mark.slow
def test_zero_grad_between_batches_loses_nothing(tmp_path):
    one = trainer(tmp_path)

    class Zero(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, optimizer=None, model=None, **kwargs):
            optimizer.zero_grad()
            model.zero_grad()

    one.add_callback(Zero())
    one.train()
    torch.testing.assert_close(ended(one), by_hand(), rtol=0.0, atol=0.0)


@pytest.mark.slow
def test_a_mixin_for_other_trainers(tmp_path):
    class Mine(hf.PrivateTrainerMixin, transformers.Seq2SeqTrainer):
        pass

    args = transformers.Seq2SeqTrainingArguments(
        str(tmp_path), per_device_train_batch_size=BATCH, use_cpu=True, report_to="none", save_strategy="no",
        disable_tqdm=True, learning_rate=0.1, optim="sgd",
    )  # fmt: skip
    one = Mine(
        model=Classifier(0.0),
        args=args,
        train_dataset=Rows(),
        privacy=hf.Privacy(CAL, clip_norm=0.5, generator=1, rng=2),
    )
    one.train()
    torch.testing.assert_close(ended(one), by_hand(), rtol=0.0, atol=0.0)


class Table(Rows):
    """The parts of a dataset with columns that Trainer uses; records the order of removed columns."""

    column_names = ("inputs", "labels", "one", "two", "three", "four")
    removed = ()

    def remove_columns(self, names):
        kept = Table()
        kept.column_names = tuple(name for name in self.column_names if name not in names)
        kept.removed = tuple(names)
        return kept


def test_names_in_the_order_of_a_set_are_no_other_data(tmp_path):
    """Trainer lists names from sets, whose order differs between processes (PYTHONHASHSEED)."""

    def with_names(*names):
        one = trainer(tmp_path)
        one._signature_columns = ["inputs", *names]
        return one.run

    _, optimizer, loader = with_names("label", "label_ids", "labels")
    state = loader.state_dict()
    optimizer.close()
    _, optimizer, loader = with_names("labels", "label_ids", "label")
    loader.load_state_dict(state)
    optimizer.close()


def test_unused_columns_are_taken_off_in_one_order(tmp_path, monkeypatch):
    one = trainer(tmp_path, data=Table())

    def unused(data, description=None):
        return data.remove_columns(["two", "one", "four", "three"])

    monkeypatch.setattr(one, "_remove_unused_columns", unused)
    _, optimizer, loader = one.run
    assert loader._dataset.removed == ("four", "one", "three", "two")
    optimizer.close()
