"""Texts with padding, privately: a small BERT tells in which language the name of a country or coin is.

The names are those of Unicode's locale data, about 1,200 in each of eight languages, which Babel ships.

Run as `python texts_with_padding.py FOLDER --eps 8`.
"""

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence

import torch
from babel import Locale
from finishing import finish, together
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertModel,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

import dpmech as dm
from dpmech.optim import make_private

LANGUAGES = ("de", "en", "es", "fi", "fr", "hu", "pl", "tr")
# The characters are listed, not looked up in the data: which occur there is a fact about the examples.
CHARACTERS = "abcdefghijklmnopqrstuvwxyzßàáâãäåæçèéêëìíîïñòóôöøùúûüýąćęğıłńőœřśşšűźżž -’()"
LONGEST, WIDTH = 24, 48


def tokenizer() -> PreTrainedTokenizerFast:
    """One word a character; everything else is unknown."""
    vocabulary = {"[PAD]": 0, "[UNK]": 1} | {
        one: place for place, one in enumerate(CHARACTERS, start=2)
    }
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]"
    )


def names(split: PreTrainedTokenizerFast) -> list[dict[str, object]]:
    """Character numbers and the number of the language; a name that several languages have stands in each."""
    rows: list[dict[str, object]] = []
    for label, code in enumerate(LANGUAGES):
        locale = Locale(code)
        found = {
            *locale.territories.values(),
            *locale.languages.values(),
            *locale.currencies.values(),
        }
        rows += [
            {
                "input_ids": split(name.lower()[:LONGEST])["input_ids"],
                "label": label,
            }
            for name in sorted(found)
        ]
    return rows


class Classifier(nn.Module):
    """A BERT from scratch, and a head on the mean over the characters that are no padding."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=2 + len(CHARACTERS),
            hidden_size=WIDTH,
            num_hidden_layers=1,
            num_attention_heads=4,
            intermediate_size=2 * WIDTH,
            max_position_embeddings=LONGEST,
            initializer_range=0.1,
            hidden_dropout_prob=0.0,  # the noise is enough of it
            attention_probs_dropout_prob=0.0,
        )
        self.body = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(WIDTH, len(LANGUAGES))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Scores of the languages."""
        shown = attention_mask.float()
        found = self.body(
            input_ids=input_ids, attention_mask=attention_mask
        ).last_hidden_state
        return self.head(
            (found * shown[:, :, None]).sum(1) / shown.sum(1, keepdim=True)
        )


def loss(model: nn.Module, labels: Tensor, **inputs: Tensor) -> Tensor:
    """Of one example, a batch of one."""
    return nn.functional.cross_entropy(model(**inputs), labels)


def accuracy_of(model: nn.Module, batch: Mapping[str, Tensor]) -> float:
    """On a padded batch."""
    inputs = {name: one for name, one in batch.items() if name != "labels"}
    with torch.no_grad():
        return float(
            (model(**inputs).argmax(1) == batch["labels"]).float().mean()
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--eps", type=float, default=8.0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--batch", type=int, default=1000, help="expected examples of a step"
    )
    parser.add_argument(
        "--examples",
        type=int,
        default=8155,
        help="declared: how many there are is private",
    )
    given = parser.parse_args(arguments)
    split = tokenizer()
    rows = names(split)
    collate = DataCollatorWithPadding(split)
    train = [row for place, row in enumerate(rows) if place % 6]
    test = collate([row for place, row in enumerate(rows) if place % 6 == 0])

    plan = dm.TrainingPlan(
        dataset_size=given.examples, batch_size=given.batch, epochs=given.epochs
    )
    calibration = dm.calibrate_sigma(
        dm.Identity(plan.steps),
        given.eps,
        1e-5,
        participation=plan.participation("poisson"),
    )
    torch.manual_seed(
        0
    )  # of the first weights, which are no secret; noise and batches do not follow it
    model = Classifier()
    private, optimizer, batches = make_private(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        DataLoader(train, collate_fn=collate),
        calibration,
        1.0,
        loss=loss,
        expected_batch_size=plan.batch_size,
        max_physical_batch_size=256,
    )
    while optimizer.steps_left:
        for batch in batches:  # padded to the longest of its batch
            private.backward(**batch)
            optimizer.step()
    model.eval()
    sys.stdout.write(
        finish(optimizer.run_record(), given.folder, accuracy_of(model, test))
    )
    return 0


if __name__ == "__main__":
    sys.exit(together(main))
