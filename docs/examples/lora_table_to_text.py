"""Private LoRA: a small causal language model learns to put tables into words.

The model is GPT-2 built from a configuration, with random weights that stay frozen; PEFT adds LoRA, and only
that is trained. Tables and sentences are generated here. Nothing is downloaded.

Run as `python lora_table_to_text.py FOLDER`; certificate, run record and report go into the folder.
`--optimizer` chooses the rule, `--denoise` shrinks the singular values of its gradients first; under Muon
every matrix is clipped by itself, and all are one release.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

import numpy as np
import torch
from finishing import finish, of_first, together
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import dpmech as dm
from dpmech.optim import (
    AdamBC,
    Muon,
    PerMatrixClipping,
    attach_denoiser,
    make_private,
    momentum_noise_ratios,
)

NAMES = (
    "anchor",
    "bakery",
    "castle",
    "dolphin",
    "eagle",
    "falcon",
    "garden",
    "harbour",
)
FOODS = (
    "chinese",
    "english",
    "french",
    "indian",
    "italian",
    "japanese",
    "thai",
)
PRICES = ("cheap", "moderate", "expensive")
AREAS = ("centre", "riverside", "station")
MARKS = ("<pad>", "<text>", "<end>")
WORDS = (
    *("name", "food", "price", "area", "the", "is", "a", "place"),
    *("with", "in", "serves", "at", "prices", "you", "find"),
)
VOCABULARY = [*MARKS, *WORDS, *NAMES, *FOODS, *PRICES, *AREAS]
LENGTH = 24


def example(rng: np.random.Generator) -> str:
    """A table and one of three sentences that say the same."""
    name, food, price, area = (
        str(rng.choice(words)) for words in (NAMES, FOODS, PRICES, AREAS)
    )
    sentences = (
        f"the {name} is a {price} place with {food} food in the {area}",
        f"the {name} in the {area} serves {food} food at {price} prices",
        f"in the {area} you find the {name} with {price} {food} food",
    )
    return f"name {name} food {food} price {price} area {area} <text> {rng.choice(sentences)} <end>"


def tables(count: int, seed: int) -> Tensor:
    """Word numbers, shape (count, LENGTH), padded with 0."""
    rng = np.random.default_rng(seed)
    tokens = torch.zeros(count, LENGTH, dtype=torch.int64)
    for row in tokens:
        words = [VOCABULARY.index(word) for word in example(rng).split()]
        row[: len(words)] = torch.tensor(words)
    return tokens


def language_model() -> nn.Module:
    """A frozen random GPT-2 with trainable LoRA matrices of rank 8."""
    config = GPT2Config(
        vocab_size=len(VOCABULARY),
        n_positions=LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=None,
        eos_token_id=None,
        resid_pdrop=0.0,  # the noise is enough of it
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    adapter = LoraConfig(
        task_type="CAUSAL_LM",
        r=8,
        lora_alpha=32,
        target_modules=["c_attn", "c_proj", "c_fc"],
        fan_in_fan_out=True,  # of GPT-2's own linear layers
    )
    return get_peft_model(GPT2LMHeadModel(config), adapter)


def losses(model: nn.Module, tokens: Tensor) -> Tensor:
    """One a row of `tokens`: the mean over the words of its own sentence.

    The loss that transformers computes is a mean over the words of all rows: there one row's gradient is
    weighted by what the others hold, which no clipping bounds.
    """
    logits = model(input_ids=tokens).logits[:, :-1]
    each = nn.functional.cross_entropy(
        logits.transpose(1, 2), tokens[:, 1:], reduction="none"
    )
    spoken = sentences(tokens)
    return (each * spoken).sum(1) / spoken.sum(1).clamp(min=1)


def sentences(tokens: Tensor) -> Tensor:
    """1 where the next word is one of the sentence, shape (rows, LENGTH - 1)."""
    return (tokens[:, :-1] == VOCABULARY.index("<text>")).cumsum(1) * (
        tokens[:, 1:] != 0
    )


def accuracy_of(model: nn.Module, tokens: Tensor) -> float:
    """How many words of the sentences are the likeliest ones."""
    right = model(input_ids=tokens).logits[:, :-1].argmax(2) == tokens[:, 1:]
    spoken = sentences(tokens)
    return float((right * spoken).sum() / spoken.sum())


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Of one example."""
    return losses(model, tokens[None])[0]


RULES = ("adambc", "muon", "muonbc", "sgd")


def rule(
    name: str, params: list[nn.Parameter], floor: float, strategy: dm.Strategy
) -> torch.optim.Optimizer:
    """The inner optimizer, of RULES; rates found by hand.

    `floor` is that of AdamBC. Correlated noise partly cancels in Muon's momentum: MuonBC is told how much.
    """
    if name == "adambc":
        return AdamBC(params, lr=0.01, floor=floor)
    if name == "sgd":
        return torch.optim.SGD(params, lr=1.0, momentum=0.9)
    if name == "muon":
        return Muon(params, lr=0.01)
    ratios = momentum_noise_ratios(strategy, 0.95)
    return Muon(params, lr=0.01, momentum=0.95, probes=1, noise_ratios=ratios)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--eps", type=float, default=8.0)
    parser.add_argument(
        "--gradients",
        choices=["func", "opacus"],
        default="opacus",
        help="per example, by what",
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--examples", type=int, default=3000)
    parser.add_argument("--optimizer", choices=RULES, default="adambc")
    parser.add_argument(
        "--denoise", action="store_true", help="singular values of gradients"
    )
    given = parser.parse_args(arguments)

    bins = 10
    strategy, participation = (
        dm.LambdaCGD(bins * given.epochs, 0.7),
        dm.BallsInBins(bins),
    )
    calibration = of_first(
        lambda: dm.calibrate_sigma(
            strategy, given.eps, 1e-5, participation=participation
        )
    )
    model = language_model()
    trained = [param for param in model.parameters() if param.requires_grad]
    batch_size = (
        given.examples / bins
    )  # what was planned, of however many examples there are
    floor = calibration.noise_variance(0, 1.0, batch_size)
    inner = rule(given.optimizer, trained, floor, strategy)
    if given.denoise:
        attach_denoiser(inner)
    clipping = None
    if isinstance(inner, Muon):
        clipping = PerMatrixClipping.for_model(
            model, calibration.sigma, clip_norm=0.3
        )
    private, optimizer, batches = make_private(
        model,
        inner,
        DataLoader(TensorDataset(tables(given.examples, seed=1))),
        calibration,
        1.0 if clipping is None else None,
        clipping=clipping,
        loss=loss if given.gradients == "func" else None,
        expected_batch_size=batch_size,
        max_physical_batch_size=64,
    )
    held = tables(300, seed=2)
    with torch.no_grad():
        before = float(losses(model, held).mean())
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("training", total=optimizer.steps_left)
        while optimizer.steps_left:
            for (tokens,) in batches:
                if given.gradients == "func":
                    private.backward(tokens)
                elif len(tokens):
                    optimizer.zero_grad()
                    losses(private, tokens).mean().backward()
                optimizer.step()
                progress.update(task, completed=batches.steps_taken)
    with torch.no_grad():
        after, accuracy = (
            float(losses(model, held).mean()),
            accuracy_of(model, held),
        )
    sys.stdout.write(f"loss per word {before:.3f} before, {after:.3f} after\n")
    sys.stdout.write(finish(optimizer.run_record(), given.folder, accuracy))
    return 0


if __name__ == "__main__":
    sys.exit(together(main))
