"""Models of transformers for the matrix of models, tiny, with texts of several lengths in one batch."""

import functools
from typing import Any

import peft
import tokenizers
import torch
import transformers
from torch import Tensor, nn

from tests.support.model_zoo import CLASSES, EXAMPLES, Entry

F = nn.functional
WORDS = 40
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
EAGER = {"attn_implementation": "eager"}


@functools.cache
def tokenizer() -> Any:
    """One of whole words, w3 to w39."""
    words = {"[PAD]": 0, "[UNK]": 1} | {f"w{number}": number for number in range(2, WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


def texts() -> list[str]:
    return [
        " ".join(f"w{number}" for number in torch.randint(2, WORDS, (4 + index,)).tolist())
        for index in range(EXAMPLES)
    ]


def labelled() -> dict[str, Tensor]:
    """Texts with a label, by DataCollatorWithPadding."""
    rows = [
        {"input_ids": tokenizer()(text)["input_ids"], "label": index % CLASSES}
        for index, text in enumerate(texts())
    ]
    return dict(transformers.DataCollatorWithPadding(tokenizer())(rows))


def continued() -> dict[str, Tensor]:
    """Texts to be continued; what is padding has no label."""
    batch = dict(tokenizer()(texts(), padding=True, return_tensors="pt"))
    batch.pop("token_type_ids", None)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch


def pictures() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(EXAMPLES, 1, 8, 8), "labels": torch.randint(CLASSES, (EXAMPLES,))}


# ---- losses: the mean over the examples of each one's own


def classified(model: nn.Module, labels: Tensor, **inputs: Tensor) -> Tensor:
    return F.cross_entropy(model(**inputs).logits, labels)


def by_wide_mask(model: nn.Module, labels: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
    """As `dpmech.optim.hf.masked_loss`: nothing branches on the values of the mask."""
    return F.cross_entropy(model(attention_mask=_wide(attention_mask), **inputs).logits, labels)


def each_text(model: nn.Module, labels: Tensor, **inputs: Tensor) -> Tensor:
    return _mean_of_texts(model(**inputs).logits[:, :-1], labels[:, 1:])


def each_answer(model: nn.Module, labels: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
    answers = labels.clamp(min=0)
    logits = model(attention_mask=_wide(attention_mask), decoder_input_ids=answers, **inputs).logits
    return _mean_of_texts(logits, labels)


def _mean_of_texts(logits: Tensor, labels: Tensor) -> Tensor:
    each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
    return (each.sum(1) / (labels != -100).sum(1)).mean()


def _wide(mask: Tensor) -> Tensor:
    return (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min


# ---- models


def bert(*, frozen: bool = False, **options: Any) -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        max_position_embeddings=16,
        num_labels=CLASSES,
        **SIZES,
        **NO_DROPOUT,
        **(EAGER | options),
    )
    model = transformers.BertForSequenceClassification(config)
    model.bert.embeddings.requires_grad_(not frozen)
    return model


def distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=WORDS, max_position_embeddings=16, num_labels=CLASSES, n_layers=2, n_heads=2, dim=16,
        hidden_dim=24, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0, **EAGER,
    )  # fmt: skip
    return transformers.DistilBertForSequenceClassification(config)


def gpt2(*, checkpointing: bool = False, **options: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, **(EAGER | options),
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model


def lora() -> nn.Module:
    adapter = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)
    model = peft.get_peft_model(gpt2(), adapter)
    for name, param in model.named_parameters():
        if "lora_B" in name:  # zeros at the start: the other half would have no gradient
            nn.init.normal_(param, std=0.1)
    return model


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=WORDS, max_position_embeddings=16, num_key_value_heads=1, bos_token_id=None,
        eos_token_id=None, pad_token_id=0, **SIZES, **EAGER,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, num_labels=CLASSES, **SIZES, **EAGER
    )
    return transformers.ViTForImageClassification(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, **EAGER,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


TRANSFORMERS = {
    "BERT": Entry(bert, labelled, by_wide_mask),
    "BERT, as it is": Entry(bert, labelled, classified),
    "BERT, frozen embeddings": Entry(lambda: bert(frozen=True), labelled, by_wide_mask),
    "BERT, fused attention": Entry(lambda: bert(attn_implementation="sdpa"), labelled, classified),
    "DistilBERT": Entry(distilbert, labelled, by_wide_mask),
    "GPT-2": Entry(gpt2, continued, each_text),
    "GPT-2, fused attention": Entry(lambda: gpt2(attn_implementation="sdpa"), continued, each_text),
    "GPT-2, LoRA": Entry(lora, continued, each_text),
    "GPT-2, bfloat16": Entry(lambda: gpt2().bfloat16(), continued, each_text),
    "GPT-2, gradient checkpointing": Entry(lambda: gpt2(checkpointing=True), continued, each_text),
    "Llama": Entry(llama, continued, each_text),
    "ViT": Entry(vit, pictures, classified),
    "T5": Entry(t5, continued, each_answer),
}
