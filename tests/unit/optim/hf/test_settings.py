"""Settings of a Trainer that work: compared with explicit sums over examples, or with the loop by hand."""

import copy
import itertools
import math
import types

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import dpmech as dm
from dpmech.optim import make_private
from tests.support.trainers import SIZE, Classifier, Rows

transformers = pytest.importorskip("transformers")
hf = pytest.importorskip("dpmech.optim.hf")

EPOCH, N = 4, 4
BATCH = SIZE // EPOCH
CAL = dm.calibrate_sigma(dm.LambdaCGD(N, 0.5), 8.0, 1e-5, participation=dm.MinSep(EPOCH))
CLIP = 0.5


def trainer(folder, *, kind=None, model=None, data=None, more=None, privacy=None, **options):
    given = {
        "output_dir": str(folder), "per_device_train_batch_size": BATCH, "num_train_epochs": 1,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
        "learning_rate": 0.1, "optim": "sgd",
    }  # fmt: skip
    return (kind or hf.PrivateTrainer)(
        model=Classifier(0.0) if model is None else model,
        args=transformers.TrainingArguments(**given | options),
        train_dataset=Rows() if data is None else data,
        privacy=hf.Privacy(CAL, **{"clip_norm": CLIP, "generator": 1, "rng": 2} | (privacy or {})),
        **more or {},
    )


def ended(one):
    one.run[1].close()
    return torch.cat([param.detach().flatten() for param in one.model.parameters()])


def by_hand(*, half=False, **options):
    """The loop of make_private, with the schedule that a Trainer has by default."""
    model = Classifier(0.0)
    groups = [
        [p for name, p in model.named_parameters() if ("bias" in name) == late] for late in (False, True)
    ]
    private, optimizer, loader = make_private(
        model,
        torch.optim.SGD([{"params": group} for group in groups], lr=0.1),
        DataLoader(Rows(), batch_size=BATCH),
        CAL,
        CLIP,
        loss=lambda model, **batch: model(**batch)["loss"],
        generator=1,
        rng=2,
        **options,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (N - step) / N)
    for batch in loader:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            private.backward(**batch)
        optimizer.step()
        schedule.step()
    optimizer.close()
    return torch.cat([param.detach().flatten() for param in model.parameters()])


@pytest.mark.parametrize("mode", ["auto", "loop"])
def test_bf16_is_autocast_in_training_and_evaluation(mode, tmp_path):
    one = trainer(
        tmp_path, bf16=True, eval_strategy="epoch", more={"eval_dataset": Rows(8, seed=5)},
        privacy={"clipping_mode": mode},
    )  # fmt: skip
    # Files: what a call leaves in a set is put back.
    states = list(itertools.product((True, False), repeat=2))
    paths = {state: tmp_path / f"{number}.calls" for number, state in enumerate(states)}
    forward = Classifier.forward

    def noting(model, inputs, labels=None):
        paths[model.training, torch.is_autocast_enabled("cpu")].touch()
        return forward(model, inputs, labels)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Classifier, "forward", noting)
        one.train()
    assert {state for state, path in paths.items() if path.exists()} == {(True, True), (False, True)}
    found = ended(one)
    torch.testing.assert_close(found, by_hand(half=True, clipping_mode=mode), rtol=0.0, atol=0.0)
    exact = by_hand(clipping_mode=mode)
    assert not torch.equal(found, exact)
    torch.testing.assert_close(found, exact, rtol=0.05, atol=0.05)


class Words(Rows):
    """Three words and a class, for a small BERT."""

    def __getitem__(self, index):
        return {"input_ids": self.inputs[index].abs().mul(5).long() % 20, "labels": self.labels[index]}


def bert():
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=20,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=8,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def smoothed(logits, label, factor):
    """(1 - factor) times the loss at the label, and factor times the mean over all classes."""
    logs = logits - logits.logsumexp(0)
    return -(1 - factor) * logs[label] - factor * logs.mean()


@pytest.mark.parametrize("factor", [0.0, 0.3])
def test_label_smoothing_is_that_of_one_example(factor, tmp_path):
    data = Words()
    one = trainer(tmp_path, model=bert(), data=data, label_smoothing_factor=factor, max_steps=1)
    trained = [param for group in one.run[1].param_groups for param in group["params"]]
    expected = 0.0
    for index in one.run[2].sampler.indices(0).tolist():
        logits = one.model(input_ids=data[index]["input_ids"][None]).logits[0]
        grads = torch.autograd.grad(smoothed(logits, data[index]["labels"], factor), trained)
        row = torch.cat([grad.double().flatten() for grad in grads])
        expected = expected + row * min(1.0, CLIP / float(row.norm()))
    sums, take = [], one.run[1]._batch.take
    one.run[1]._batch.take = lambda: [sums.append(x.double().flatten().clone()) or x for x in take()]
    one.train()
    one.run[1].close()
    found = torch.cat(sums)
    assert float((found - expected).norm() / expected.norm()) < 1e-4


def test_a_found_size_trains_as_any_other(tmp_path):
    """The loop is not restarted: the microbatches are found before the first step."""
    one = trainer(tmp_path, auto_find_batch_size=True)
    one.train()
    assert one.run[2].physical_batch_size is not None
    torch.testing.assert_close(ended(one), by_hand(), rtol=1e-5, atol=1e-6)


class AtEveryCall(hf.PrivateTrainer):
    """`create_optimizer` as many people write it: it makes a new one whenever it is called."""

    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.5)
        return self.optimizer


class ReturnsNothing(hf.PrivateTrainer):
    def create_optimizer(self, model=None):
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.5)


@pytest.mark.parametrize("kind", [AtEveryCall, ReturnsNothing])
def test_an_optimizer_of_a_class_is_the_one_that_steps(kind, tmp_path):
    one = trainer(tmp_path, kind=kind)
    one.train()
    assert one.optimizer is one.run[1]
    assert one.run[1].record.steps == N
    assert len(one.run[1].state) == len(list(one.model.parameters()))  # momentum was used
    one.run[1].close()


def test_a_given_optimizer_and_schedule_are_used(tmp_path):
    model = Classifier(0.0)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = torch.optim.lr_scheduler.ExponentialLR(own, 0.5)
    one = trainer(tmp_path, model=model, more={"optimizers": (own, rates)})
    one.train()
    assert own.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**N)
    one.run[1].close()


def test_averages_of_weights_are_post_processing(tmp_path):
    class Average(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, model=None, **kwargs):
            self.ema = torch.optim.swa_utils.AveragedModel(
                model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
            )
            self.last = copy.deepcopy(model)

        def on_step_end(self, args, state, control, model=None, **kwargs):
            self.ema.update_parameters(model)

    average = Average()
    one = trainer(tmp_path, more={"callbacks": [average]})
    one.train()
    weights = torch.cat([param.detach().flatten() for param in average.ema.parameters()])
    found = ended(one)
    assert not torch.equal(weights, found)
    torch.testing.assert_close(found, by_hand(), rtol=0.0, atol=0.0)


class ScheduleFree(torch.optim.Optimizer):
    """Averages instead of a schedule: gradients are taken between the average x and the iterate z.

    `train` and `eval` move the weights between the two places, with rounding errors.
    """

    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta, "train_mode": False, "k": 0})

    @torch.no_grad()
    def _move(self, train):
        for group in self.param_groups:
            if group["train_mode"] != train:
                weight = 1 - group["beta"] if train else 1 - 1 / group["beta"]
                for param in group["params"]:
                    if "z" in self.state[param]:
                        param.lerp_(self.state[param]["z"], weight)
            group["train_mode"] = train

    def train(self):
        self._move(True)

    def eval(self):
        self._move(False)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("optimizer.train() comes first")
            group["k"] += 1
            part = 1 / group["k"]
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if "z" not in state:
                    state["z"] = param.clone()
                param.lerp_(state["z"], part)
                param.add_(param.grad, alpha=group["lr"] * (group["beta"] * (1 - part) - 1))
                state["z"].sub_(param.grad, alpha=group["lr"])


def schedule_free(folder, *, stop=None, **options):
    model = Classifier(0.0)

    class Killed(Exception):
        pass

    class Kill(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == stop:
                raise Killed

    more = {
        "optimizers": (ScheduleFree(model.parameters()), None), "eval_dataset": Rows(8, seed=5),
        "callbacks": [Kill()],
    }  # fmt: skip
    one = trainer(
        folder, model=model, more=more, lr_scheduler_type="constant", eval_strategy="steps", eval_steps=1,
        save_strategy="steps", save_steps=2, **options,
    )  # fmt: skip
    try:
        one.train(resume_from_checkpoint="auto")
    except Killed:
        one.run[1].close()
        return None
    assert one.run[1].record.steps == N
    assert one.run_record().steps == N
    return ended(one)


def test_schedule_free_optimizers(tmp_path):
    """They move the weights for evaluations and back, by released values alone."""
    whole = schedule_free(tmp_path / "whole")
    assert torch.isfinite(whole).all()
    assert schedule_free(tmp_path / "cut", stop=3) is None
    resumed = schedule_free(tmp_path / "cut", privacy={"generator": None, "rng": None})
    torch.testing.assert_close(resumed, whole, rtol=0.0, atol=0.0)
    assert not math.isclose(float(whole.norm()), float(by_hand().norm()), rel_tol=1e-4)


def test_the_loop_of_a_schedule_free_optimizer():
    model = Classifier(0.0)
    private, optimizer, loader = make_private(
        model, ScheduleFree(model.parameters()), DataLoader(Rows(), batch_size=BATCH), CAL, CLIP,
        loss=lambda model, **batch: model(**batch)["loss"],
    )  # fmt: skip
    for batch in loader:
        optimizer.train()
        private.backward(**batch)
        optimizer.step()
        optimizer.eval()
        with torch.no_grad():
            private(**batch)
    assert optimizer.run_record().steps == N
    optimizer.close()
    model = nn.Linear(3, 2)
    _, optimizer, _ = make_private(
        model, torch.optim.SGD(model.parameters()), DataLoader(Rows(), batch_size=BATCH), CAL, CLIP,
        loss=lambda model, **batch: model(batch["inputs"]).sum(),
    )  # fmt: skip
    with pytest.raises(AttributeError, match="around SGD has no train"):
        optimizer.train()
    assert not hasattr(optimizer, "eval")
    optimizer.close()


def test_processes_that_split_a_model_are_refused(tmp_path, monkeypatch):
    made = transformers.Trainer.__init__

    def split(self, *args, **kwargs):
        made(self, *args, **kwargs)
        self.accelerator = types.SimpleNamespace(
            parallelism_config=types.SimpleNamespace(non_data_parallel_size=2), state=self.accelerator.state
        )

    monkeypatch.setattr(transformers.Trainer, "__init__", split)
    monkeypatch.setattr(hf.PrivateTrainer, "is_deepspeed_enabled", False, raising=False)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"parallelism_config splits a model"):
        trainer(tmp_path)


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_the_cell_of_an_interrupted_trainer_runs_again(error, tmp_path):
    """The same model, in the same process, with the trainer before still there."""
    kept, model, hits = [], Classifier(0.2), iter((True,))

    class Stop(transformers.TrainerCallback):
        def on_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step == 2 and next(hits, False):
                raise error

    def cell():
        kept.append(
            trainer(
                tmp_path / "cut",
                model=model,
                save_strategy="steps",
                save_steps=1,
                more={"callbacks": [Stop()]},
                privacy={"generator": None, "rng": None} if kept else {},
                neftune_noise_alpha=None,
            )
        )
        return kept[-1].train(resume_from_checkpoint="auto")

    with pytest.raises(error):
        cell()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"train\(\) again, after 3 steps"):
        kept[0].train()
    assert kept[0].run_record().steps == 3
    cell()
    assert kept[1].run_record().steps == N
    found = ended(kept[1])
    whole = trainer(tmp_path / "whole", model=Classifier(0.2))
    whole.train()
    torch.testing.assert_close(found, ended(whole), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_precision_of_accelerate_is_seen(precision, tmp_path, monkeypatch):
    """As `accelerate launch` sets it."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", precision)
    if precision == "fp16":
        with pytest.raises(dm.UnsupportedCombinationError, match=r"mixed_precision='fp16' of accelerate"):
            trainer(tmp_path)
        return
    one = trainer(tmp_path)
    one.train()
    torch.testing.assert_close(ended(one), by_hand(half=True), rtol=0.0, atol=0.0)


def test_factors_of_a_small_transformer_under_autocast(tmp_path):
    """Of any length: the plan of a new length runs under the same casts as training."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, pad_token_id=0, **sizes)
    rows = [{"input_ids": torch.arange(4 + number % 5) + number % 7 + 3} for number in range(32)]

    def collate(found):
        words = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in found], batch_first=True)
        kept = (words > 0).long()
        return {"input_ids": words, "attention_mask": kept, "labels": words.masked_fill(kept == 0, -100)}

    cal = dm.calibrate_sigma(dm.Identity(6), 8.0, 1e-5, participation=dm.Poisson(0.25))
    one = hf.PrivateTrainer(
        model=transformers.LlamaForCausalLM(config),
        args=transformers.TrainingArguments(
            str(tmp_path), per_device_train_batch_size=8, max_steps=6, save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True, bf16=True,
        ),
        train_dataset=rows,
        data_collator=collate,
        privacy=hf.Privacy(
            cal, clip_norm=0.1, generator=1, rng=7, dataset_size=32, clipping_mode="ghost"
        ),
    )  # fmt: skip
    one.train()
    assert one.run[1].clipping_mode == "ghost"
    assert one.run_record().steps == 6
    one.run[1].close()
