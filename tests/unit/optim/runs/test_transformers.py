"""Models of transformers with padding and named batches, in both loops, compared with an explicit loop."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dpmech as dm
from dpmech.optim import clipped_gradients
from tests.support.training import private_run

transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")
F = nn.functional
CAL = dm.calibrate_sigma(dm.Identity(4), 8.0, 1e-5)
WORDS, CLIP = 60, 0.5
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 64}


class Texts(Dataset):
    """Texts of four to eight words, with a label, or to be continued."""

    def __init__(self, *, continued):
        self.continued = continued

    def __len__(self):
        return 12

    def __getitem__(self, index):
        words = torch.randint(3, WORDS, (4 + index % 5,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words if self.continued else torch.tensor(index % 3)}


def padded(rows):
    words = nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row["input_ids"]) for row in rows], batch_first=True)
    labels = [row["labels"] for row in rows]
    together = (
        nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=-100)
        if labels[0].ndim
        else torch.stack(labels)
    )
    return transformers.BatchEncoding({"input_ids": words, "attention_mask": mask, "labels": together})


class Pictures(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        picture = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(index))
        return {"pixel_values": picture, "labels": torch.tensor(index % 3)}


def bert(**options):
    config = transformers.BertConfig(
        vocab_size=WORDS,
        max_position_embeddings=32,
        num_labels=3,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **SIZES | options,
    )
    return transformers.BertForSequenceClassification(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    return transformers.GPT2LMHeadModel(config)


def vit():
    config = transformers.ViTConfig(image_size=16, patch_size=8, num_channels=1, num_labels=3, **SIZES)
    return transformers.ViTForImageClassification(config)


def t5():
    config = transformers.T5Config(
        vocab_size=WORDS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def frozen_bert():
    model = bert()
    model.bert.embeddings.requires_grad_(False)
    return model


MODELS = {
    "bert": (bert, Texts(continued=False), padded),
    "bert, frozen embeddings": (frozen_bert, Texts(continued=False), padded),
    "gpt2, tied": (gpt2, Texts(continued=True), padded),
    "vit": (vit, Pictures(), None),
    "t5": (t5, Texts(continued=True), padded),
}


def own_loss(model, **batch):
    return model(**batch).loss


def batch_loss(model, batch):
    """The mean over the examples of the mean over the words of each."""
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    labels = batch["labels"]
    if labels.ndim == 1:
        return F.cross_entropy(model(**inputs).logits, labels)
    if hasattr(getattr(model, "_module", model), "decoder"):
        logits = model(**inputs, labels=labels).logits
    else:
        logits, labels = model(**inputs).logits[:, :-1], labels[:, 1:]
    each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
    return (each.sum(1) / (labels != -100).sum(1)).mean()


def by_hand(model, batch):
    """The clipped sum, one backward pass per example, with its padding in the batch."""
    params = [param for param in model.parameters() if param.requires_grad]
    total = [torch.zeros_like(param, dtype=torch.float64) for param in params]
    for index in range(len(batch["labels"])):
        loss = model(**{key: value[index : index + 1] for key, value in batch.items()}).loss
        grads = torch.autograd.grad(loss, params, allow_unused=True)
        norm = torch.stack([g.double().square().sum() for g in grads if g is not None]).sum().sqrt()
        factor = min(1.0, CLIP * (1.0 - 2.0**-14) / float(norm))
        for one, grad in zip(total, grads, strict=True):
            if grad is not None:
                one.add_(grad.double(), alpha=factor)
    return total


def first_batch(name, loss, **options):
    make, data, collate = MODELS[name]
    torch.manual_seed(0)
    model = make().train()
    loader = DataLoader(data, batch_size=4, collate_fn=collate)
    parts = private_run(CAL, model, loader, clip_norm=CLIP, generator=1, loss=loss, **options)
    return model, parts, next(iter(parts[2]))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["per_example", "ghost"])
@pytest.mark.parametrize("name", MODELS)
def test_losses_of_one_example(name, mode):
    model, (private, optimizer, _), batch = first_batch(name, own_loss, clipping_mode=mode)
    value = private.backward(**batch, return_loss=True)
    for one, other in zip(optimizer._batch.take(), by_hand(model, batch), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(value, batch_loss(model, batch).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "t5"])
def test_the_loop_of_opacus(name):
    """Positions given as a batch of one apply to every example."""
    model, (private, optimizer, _), batch = first_batch(name, None)
    optimizer.zero_grad()
    batch_loss(private, batch).backward()
    optimizer.accumulate()
    found = [one.clone() for one in optimizer._batch.take()]
    optimizer.close()
    plain = MODELS[name][0]()
    plain.load_state_dict(model.state_dict())
    for one, other in zip(found, by_hand(plain, batch), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_refusals_name_an_alternative():
    _, (private, *_), batch = first_batch("t5", None)
    with pytest.raises(dm.UnsupportedCombinationError, match=r"relative_attention_bias .* called with"):
        batch_loss(private, batch)


def of_one(call, **batch):
    return own_loss(call, **{key: value[None] for key, value in batch.items()})


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_masks_are_made_under_vmap_alone(kind, monkeypatch):
    """A mask that hides nothing would be skipped by its values; without a mask nothing is made."""
    masking = transformers.masking_utils
    makers, made = masking.ALL_MASK_ATTENTION_FUNCTIONS, []
    before = makers[kind]

    def watched(*args, **kwargs):
        found = before(*args, **kwargs)
        made.append((kwargs["attention_mask"] is not None, found is not None))
        return found

    monkeypatch.setitem(makers._global_mapping, kind, watched)
    words = {"input_ids": torch.arange(3, 9)[None].expand(4, -1), "labels": torch.arange(4) % 3}
    for mask in (torch.ones(4, 6), None):
        given = words if mask is None else words | {"attention_mask": mask}
        torch.manual_seed(0)
        model = bert(attn_implementation=kind)
        clipped_gradients(model, of_one, given, CLIP)
        assert set(made) == {(mask is not None, mask is not None)}
        made.clear()
        with torch.no_grad():
            model(**given)
        assert set(made) == {(mask is not None, False)}  # as it was
        made.clear()
    with pytest.raises(dm.UnsupportedCombinationError, match=r"reads a value|branches on"):
        clipped_gradients(
            model, lambda call, **batch: of_one(call, **batch) * float(batch["labels"]), words, CLIP
        )
    assert makers[kind] is watched
    assert kind not in makers._local_mapping


@pytest.mark.slow
def test_half_precision():
    torch.manual_seed(0)
    model = gpt2().bfloat16()
    parts = private_run(
        CAL,
        model,
        DataLoader(Texts(continued=True), batch_size=4, collate_fn=padded),
        clip_norm=CLIP,
        generator=2,
        loss=own_loss,
    )
    private, optimizer, loader = parts
    batch = next(iter(loader))
    private.backward(**batch)
    found = torch.cat([one.flatten() for one in optimizer._batch.take()])
    plain = gpt2().bfloat16()
    plain.load_state_dict(model.state_dict())
    expected = torch.cat([one.flatten() for one in by_hand(plain, batch)])
    assert float((found - expected).norm()) < 0.02 * float(expected.norm())
    assert float(found.norm()) <= 4 * CLIP


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2, tied"])
def test_the_trainer_takes_padding_and_checkpointing(name, checkpointing, tmp_path):
    from dpmech.optim.hf import Privacy, PrivateTrainer

    make, data, collate = MODELS[name]
    cal = dm.calibrate_sigma(dm.Identity(3), 8.0, 1e-5, participation=dm.Poisson(1 / 3))
    torch.manual_seed(0)
    model = make()
    before = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    trainer = PrivateTrainer(
        model=model,
        args=transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=4,
            max_steps=3,
            gradient_checkpointing=checkpointing,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            remove_unused_columns=False,
        ),
        train_dataset=data,
        data_collator=collate,
        privacy=Privacy(cal, clip_norm=CLIP),
    )
    trainer.train()
    _, optimizer, _ = trainer.run
    assert (optimizer.clipping_mode == "loop") is checkpointing
    assert optimizer.record.steps == 3
    after = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    assert bool(torch.isfinite(after).all())
    assert float((after - before).norm()) > 0.0
