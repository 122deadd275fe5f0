"""PrivateSFTTrainer compared with explicit sums over the texts, what it tells, and what it refuses."""

import json
import math

import pytest
import torch

import dpmech as dm

pytest.importorskip("trl")

import datasets
import transformers
import trl

from dpmech.optim.hf.embedding_noise import EmbeddingNoise
from dpmech.optim.trl import Privacy, PrivateSFTTrainer
from tests.support.fine_tuning import (
    SIZE,
    answers,
    chats,
    llama,
    texts,
    tokenizer,
    trainer,
    words,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated .* will be removed:FutureWarning")  # in trl
PLAN = dm.TrainingPlan(dataset_size=SIZE, batch_size=6, epochs=1)
CAL = PLAN.calibrate(8.0, 1e-5)
CLIP, IGNORED = 0.5, -100


@pytest.fixture(autouse=True)
def _quiet():
    datasets.disable_progress_bars()


def tokens(text):
    return tokenizer()(text)["input_ids"]


def whole_text(row):
    ids = tokens(row["text"] + " <eos>")
    return ids, ids


def completion_only(row):
    prompt, rest = tokens(row["prompt"]), tokens(row["completion"] + " <eos>")
    return prompt + rest, [IGNORED] * len(prompt) + rest


def assistant_only(row):
    prompt, rest = (tokens(message["content"]) for message in row["messages"])
    rest = rest + tokens("<eos>")
    return prompt + rest, [IGNORED] * len(prompt) + rest


def shortened(row):
    ids = whole_text(row)[0][:4]
    return ids, ids


def mean_over_words(logits, targets, smoothing, left_out):
    """By hand: what each trained word has for a probability, given the words before it."""
    terms = []
    for place, target in enumerate(targets[1 : len(targets) - left_out]):
        if target == IGNORED:
            continue
        logs = logits[place].float() - logits[place].float().logsumexp(0)
        terms.append((1 - smoothing) * -logs[target] + smoothing * -logs.mean())
    return sum(terms) / max(len(terms), 1) + 0.0 * logits.sum()


def explicit_sum(model, rows, example, *, smoothing=0.0, half=False, left_out=0):
    """The sum of clipped gradients, one text after the other, without padding."""
    trained = [param for param in model.parameters() if param.requires_grad]
    total = [torch.zeros_like(param, dtype=torch.float64) for param in trained]
    for row in rows:
        ids, targets = example(row)
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            logits = model(input_ids=torch.tensor([ids])).logits[0]
        grads = torch.autograd.grad(mean_over_words(logits, targets, smoothing, left_out), trained)
        norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in grads))
        for own, grad in zip(total, grads, strict=True):
            own.add_(grad.double(), alpha=min(1.0, CLIP / max(norm, 1e-30)))
    return torch.cat([one.flatten() for one in total])


def sums_of(one):
    """The sums before the noise, of every step, as they are taken; and the weights before each."""
    found, take = [], one.run[1]._batch.take
    trained = [param for param in one.model.parameters() if param.requires_grad]

    def taking():
        sums = take()
        order = {
            id(p): s
            for p, s in zip([p for g in one.run[1].param_groups for p in g["params"]], sums, strict=True)
        }
        found.append(torch.cat([order[id(param)].double().flatten() for param in trained]))
        return sums

    one.run[1]._batch.take = taking
    return found


CASES = {
    "texts": (texts, whole_text, {}),
    "all weights": (texts, whole_text, {"whole": True}),
    "completions": (answers, completion_only, {}),
    "chats": (chats, assistant_only, {"assistant_only_loss": True}),
    "max_length": (texts, shortened, {"max_length": 4}),
    "microbatches": (texts, whole_text, {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}),
    "label smoothing": (texts, whole_text, {"label_smoothing_factor": 0.2}),
    "checkpointing": (texts, whole_text, {"activation_checkpointing": True}),
    "autocast": (texts, whole_text, {"bf16": True}),
    "defaults": (texts, whole_text, {"bf16": True, "activation_checkpointing": True}),
    "found size": (texts, whole_text, {"auto_find_batch_size": True}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_sum_of_the_clipped_gradients_of_its_texts(name, tmp_path):
    make, example, options = CASES[name]
    data = make()
    one = trainer(tmp_path, CAL, data=data, max_steps=1, **options)
    found = sums_of(one)
    drawn = one.run[2].sampler.indices(0).tolist()
    half = bool(options.get("bf16"))
    smoothing = options.get("label_smoothing_factor", 0.0)
    rows = [data[index] for index in drawn]
    expected = explicit_sum(one.model, rows, example, smoothing=smoothing, half=half)
    other = explicit_sum(one.model, rows, example, smoothing=smoothing, half=half, left_out=1)
    one.train()
    one.run[1].close()
    assert len(drawn) > 2
    error, planted = (float((found[0] - one).norm() / one.norm()) for one in (expected, other))
    assert error < (0.02 if half else 2e-4)
    assert planted > 0.04


def test_nothing_of_the_training_texts_is_told(tmp_path):
    one = trainer(
        tmp_path, CAL, held=texts(8, first=50), eval_strategy="steps", eval_steps=2, save_strategy="steps",
        save_steps=2, logging_steps=1,
    )  # fmt: skip
    # As if something had counted: TRL's `log` would add the mean.
    one._metrics["train"]["mean_token_accuracy"].append(0.5)
    result = one.train()
    one.run[1].close()
    logged = set().union(*one.state.log_history)
    assert not {"loss", "grad_norm", "train_loss", "total_flos", "num_tokens", "entropy"} & logged
    assert "mean_token_accuracy" not in logged
    assert {"epsilon_spent", "eval_loss", "eval_mean_token_accuracy", "eval_entropy"} <= logged
    assert "eval_num_tokens" not in logged  # of training, which TRL also logs at evaluations
    assert math.isnan(result.training_loss)
    assert one._total_train_tokens == 0
    states = list(tmp_path.glob("checkpoint-*/trainer_state.json"))
    assert len(states) >= 2
    for state in states:
        found = json.loads(state.read_text())
        rows = set().union(*found["log_history"]) if found["log_history"] else set()
        assert rows <= logged
        assert found["num_input_tokens_seen"] == 0
        assert found["total_flos"] == 0


def test_telemetry_is_the_same_for_other_texts(tmp_path, monkeypatch):
    told = []
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr("trl.trainer.base_trainer.send_telemetry", lambda **sent: told.append(sent))
    for data in (texts(), texts(SIZE - 1, first=7)):
        trainer(tmp_path, CAL, data=data)
    assert len(told) == 2
    assert told[0] == told[1]


def test_the_model_card_says_what_was_protected_and_by_which_record(tmp_path):
    one = trainer(tmp_path / "out", CAL, save_strategy="steps", save_steps=2)
    one.train()
    for _ in range(2):  # the second time over the first
        one.save_model(str(tmp_path / "adapter"))
    one.run[1].close()
    record = dm.RunRecord.load(tmp_path / "adapter" / "run_record.json")
    assert dm.verify(tmp_path / "adapter" / "run_record.json").ok
    assert record.steps == PLAN.steps
    card = (tmp_path / "adapter" / "README.md").read_text()
    assert card.count("## Differential privacy") == 1
    assert record.headline in card
    assert "one example of the training data" in card
    assert json.loads((tmp_path / "adapter" / "run_record.json").read_text())["checksum"] in card
    assert "trl" in card  # the rest of the card is that of TRL and PEFT
    own = (tmp_path / "out" / "README.md").read_text()  # which TRL writes at every checkpoint
    assert "## Differential privacy" in own
    assert dm.RunRecord.load(tmp_path / "out" / "run_record.json").headline in own


def test_a_card_of_another_model_gets_the_section_in_its_place(tmp_path):
    one = trainer(tmp_path / "out", CAL, max_steps=1)
    one.train()
    (tmp_path / "model").mkdir()
    card = tmp_path / "model" / "README.md"
    card.write_text("---\nlicense: mit\n---\n# Mine\n")
    one._save_record(tmp_path / "model")
    card.write_text(card.read_text() + "\n## Uses\n")
    one._save_record(tmp_path / "model")
    one.run[1].close()
    found = card.read_text()
    assert found.startswith("---\nlicense: mit\n---\n# Mine\n")
    assert found.endswith("## Uses\n")
    assert found.count("## Differential privacy") == found.count("## Uses") == 1


REFUSED = {
    "packing": ({"packing": True, "max_length": 16}, r"packing=True; supported: packing=False"),
    "padding-free": (
        {"padding_free": True, "max_length": None},
        "padding_free=True; supported: padding_free=F",
    ),
    "dft": ({"loss_type": "dft"}, r"loss_type='dft'; supported: loss_type='nll', or Privacy\(loss"),
    "offloading": ({"activation_offloading": True}, "activation_offloading=True; supported: "),
    "fp16": ({"fp16": True, "bf16": False}, "fp16=True; supported: bf16=True"),
    "tokens": ({"include_num_input_tokens_seen": "all"}, "lengths of the texts in a batch are private"),
    "liger": ({"use_liger_kernel": True}, "use_liger_kernel=True; supported: use_liger_kernel=False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_settings_under_which_a_row_is_no_example_are_refused(name, tmp_path):
    options, told = REFUSED[name]
    with pytest.raises(dm.UnsupportedCombinationError, match=told):
        trainer(tmp_path, CAL, **options)


def test_other_refusals(tmp_path):
    with pytest.raises(dm.InvalidParameterError, match=r"privacy must be a dpmech\.optim\.trl\.Privacy"):
        PrivateSFTTrainer(model=llama(), train_dataset=texts(), privacy=CAL)
    with pytest.raises(dm.UnsupportedCombinationError, match="eval_dataset is the training data"):
        trainer(tmp_path, CAL, held=texts(8))
    one = trainer(tmp_path, CAL)
    with pytest.raises(dm.UnsupportedCombinationError, match="is the training data"):
        one.evaluate(texts(8))
    assert "eval_mean_token_accuracy" in one.evaluate(texts(8, first=50))
    with pytest.raises(dm.UnsupportedCombinationError, match="with a loss of your own"):
        trainer(tmp_path, CAL, privacy={"loss": lambda model, **_: None}, label_smoothing_factor=0.1)

    class Mine(PrivateSFTTrainer):
        def compute_loss(self, model, inputs, **_):
            return None

    with pytest.raises(dm.UnsupportedCombinationError, match="Mine defines compute_loss"):
        Mine(
            model=llama(), args=trl.SFTConfig(str(tmp_path), use_cpu=True, bf16=False), train_dataset=texts(),
            processing_class=tokenizer(), privacy=Privacy(CAL),
        )  # fmt: skip


def test_a_shuffle_before_batches_in_a_fixed_order_is_refused(tmp_path):
    fixed = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5, participation=dm.MinSep(4))
    with pytest.raises(dm.UnsupportedCombinationError, match=r"shuffle_dataset=True under MinSep"):
        trainer(tmp_path, fixed, shuffle_dataset=True)
    trainer(tmp_path, fixed)
    trainer(tmp_path, CAL, shuffle_dataset=True)


def test_a_public_number_of_texts_does_not_depend_on_what_they_hold(tmp_path):
    """TRL leaves out texts without a trained word: under zero-out their number is told."""
    rows = [*answers()][:-1]
    data = datasets.Dataset.from_list([*rows, {"prompt": words(5, 9), "completion": " w1"}])
    zero_out = PLAN.calibrate(8.0, 1e-5, adjacency=dm.Adjacency.ZERO_OUT)
    with pytest.raises(
        dm.UnsupportedCombinationError, match="texts without a word to train on were left out"
    ):
        trainer(tmp_path, zero_out, data=data, max_length=8)
    assert len(trainer(tmp_path, zero_out, data=data).train_dataset) == SIZE
    # Where the number is private, it may.
    assert len(trainer(tmp_path, CAL, data=data, max_length=8).train_dataset) == SIZE - 1


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    """With NEFTune, whose noise on the embeddings is drawn anew at every step."""

    class Killed(Exception):
        pass

    class Kill(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                raise Killed

    given = {"neftune_noise_alpha": 5.0, "save_strategy": "steps", "save_steps": 2, "optim": "adamw_torch"}

    def ended(one):
        one.run[1].close()
        return torch.cat([p.detach().flatten() for p in one.model.parameters() if p.requires_grad])

    whole = trainer(tmp_path / "whole", CAL, **given)
    whole.train()
    expected = ended(whole)
    first = trainer(tmp_path / "cut", CAL, **given, more={"callbacks": [Kill()]})
    with pytest.raises(Killed):
        first.train()
    first.run[1].close()
    second = trainer(tmp_path / "cut", CAL, privacy={"generator": None, "rng": None}, **given)
    second.train(resume_from_checkpoint="auto")
    torch.testing.assert_close(ended(second), expected, rtol=0.0, atol=0.0)
    without = trainer(tmp_path / "without", CAL, **given | {"neftune_noise_alpha": None})
    without.train()
    assert float((ended(without) - expected).abs().max()) > 1e-4


def test_the_noise_of_neftune_does_not_follow_the_longest_text_of_a_batch(tmp_path):
    """A Trainer's own is alpha / sqrt(padded length * width)."""
    alpha, width = 5.0, 16
    model = llama().train()
    seen = []

    def loss(model, input_ids, attention_mask):
        return model(input_ids=input_ids, attention_mask=attention_mask).logits.sum()

    noise = EmbeddingNoise(alpha, loss)
    handle = noise.attach(model)
    table = model.get_input_embeddings()
    table.register_forward_hook(lambda part, args, output: seen.append(output - table.weight[args[0]]))
    for padded in (4, 40):
        ids, mask = torch.zeros(1, padded, dtype=torch.long), torch.zeros(1, padded, dtype=torch.long)
        mask[:, :4] = 1
        noise(model, input_ids=ids, attention_mask=mask)
        found = float(seen.pop()[:, :4].detach().abs().max())
        assert 0.8 < found / (alpha / math.sqrt(4 * width)) <= 1.0
    with pytest.raises(dm.UnsupportedCombinationError, match="neftune_noise_alpha without an attention_mask"):
        noise(model, input_ids=ids)
    handle.remove()
    model(input_ids=ids)
    assert float(seen.pop().detach().abs().max()) == 0.0
