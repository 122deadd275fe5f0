"""Models of transformers for the matrix of models, tiny, with texts of several lengths in one batch."""

import functools
from typing import Any

import peft
import tokenizers
import torch
import transformers
from torch import Tensor, nn

from tests.support.model_zoo import CLASSES, EXAMPLES, HALF, Entry, half, under_autocast

F = nn.functional
WORDS = 40
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 24}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 24}
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


def one_segment() -> dict[str, Tensor]:
    batch = labelled()
    batch.pop("token_type_ids", None)
    return batch


def continued() -> dict[str, Tensor]:
    """Texts to be continued; what is padding has no label."""
    batch = dict(tokenizer()(texts(), padding=True, return_tensors="pt"))
    batch.pop("token_type_ids", None)
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return batch


def pictures() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(EXAMPLES, 1, 8, 8), "labels": torch.randint(CLASSES, (EXAMPLES,))}


def pairs() -> dict[str, Tensor]:
    texts = continued()
    texts.pop("labels")
    return texts | {"pixel_values": torch.randn(EXAMPLES, 1, 8, 8)}


def large_pictures() -> dict[str, Tensor]:
    return pictures() | {"pixel_values": torch.randn(EXAMPLES, 1, 32, 32)}


def sounds() -> dict[str, Tensor]:
    return {"input_values": torch.randn(EXAMPLES, 64), "labels": torch.randint(CLASSES, (EXAMPLES,))}


def spectra() -> dict[str, Tensor]:
    return {
        "input_features": torch.randn(EXAMPLES, 4, 32),
        "labels": torch.randint(WORDS, (EXAMPLES, 5)),
    }


# ---- losses: the mean over the examples of each one's own


def classified(model: nn.Module, labels: Tensor, **inputs: Tensor) -> Tensor:
    return F.cross_entropy(model(**inputs).logits, labels)


def each_text(model: nn.Module, labels: Tensor, **inputs: Tensor) -> Tensor:
    return _mean_of_texts(model(**inputs).logits[:, :-1], labels[:, 1:])


def each_answer(model: nn.Module, labels: Tensor, attention_mask: Tensor, **inputs: Tensor) -> Tensor:
    answers = labels.clamp(min=0)
    logits = model(attention_mask=attention_mask, decoder_input_ids=answers, **inputs).logits
    return _mean_of_texts(logits, labels)


def each_transcript(model: nn.Module, labels: Tensor, **inputs: Tensor) -> Tensor:
    return _mean_of_texts(model(decoder_input_ids=labels, **inputs).logits, labels)


def each_prompted(model: nn.Module, labels: Tensor, **inputs: Tensor) -> Tensor:
    return _mean_of_texts(model(**inputs).logits[:, 3:-1], labels[:, 1:])


def each_pair(model: nn.Module, **pairs: Tensor) -> Tensor:
    """A score of an example's picture and text; CLIP's own loss compares them with those of others."""
    found = model(**pairs)
    scale = getattr(model, "_module", model).logit_scale
    return F.softplus(-scale * (found.image_embeds * found.text_embeds).sum(1)).mean()


def _mean_of_texts(logits: Tensor, labels: Tensor) -> Tensor:
    each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=-100)
    return (each.sum(1) / (labels != -100).sum(1)).mean()


# ---- models, with their default attention unless something else is asked for


def bert(kind: str = "Bert", **options: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=WORDS,
        max_position_embeddings=32,
        num_labels=CLASSES,
        pad_token_id=0,
        **SIZES,
        **NO_DROPOUT,
        **options,
    )
    return getattr(transformers, f"{kind}ForSequenceClassification")(config)


def frozen_bert() -> nn.Module:
    model: Any = bert()
    model.bert.embeddings.requires_grad_(False)
    return model


def distilbert() -> nn.Module:
    config = transformers.DistilBertConfig(
        vocab_size=WORDS, max_position_embeddings=16, num_labels=CLASSES, n_layers=2, n_heads=2, dim=16,
        hidden_dim=24, dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    return transformers.DistilBertForSequenceClassification(config)


def gpt2(*, dropout: float = 0.0, **options: Any) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=dropout,
        embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=None, eos_token_id=None, **options,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def decoder(kind: str, **options: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=WORDS, max_position_embeddings=16, num_key_value_heads=1, bos_token_id=None,
        eos_token_id=None, pad_token_id=0, **SIZES, **options,
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def vit(**options: Any) -> nn.Module:
    config = transformers.ViTConfig(
        image_size=8, patch_size=4, num_channels=1, num_labels=CLASSES, **SIZES, **options
    )
    return transformers.ViTForImageClassification(config)


def t5(**options: Any) -> nn.Module:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0,
        decoder_start_token_id=0, **options,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def seq2seq(kind: str) -> nn.Module:
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in SIDE.items()}
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=WORDS, d_model=16, max_position_embeddings=16, dropout=0.0, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=0, **sizes,
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForConditionalGeneration")(config)


def whisper() -> nn.Module:
    sizes = {f"{part}_{name}": size for part in ("encoder", "decoder") for name, size in SIDE.items()}
    config = transformers.WhisperConfig(
        vocab_size=WORDS, num_mel_bins=4, d_model=16, max_source_positions=16, max_target_positions=16,
        dropout=0.0, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, **sizes,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


def wav2vec2(**options: Any) -> nn.Module:
    config = transformers.Wav2Vec2Config(
        vocab_size=WORDS, conv_dim=(8, 8), conv_kernel=(4, 4), conv_stride=(2, 2), num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, num_labels=CLASSES, classifier_proj_size=8, feat_proj_dropout=0.0,
        hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, final_dropout=0.0, layerdrop=0.0,
        apply_spec_augment=False, **SIZES, **options,
    )  # fmt: skip
    return transformers.Wav2Vec2ForSequenceClassification(config)


def over_pictures(kind: str, **options: Any) -> nn.Module:
    config = getattr(transformers, f"{kind}Config")(
        image_size=32, num_channels=1, num_labels=CLASSES, **options
    )
    return getattr(transformers, f"{kind}ForImageClassification")(config)


def prompted() -> nn.Module:
    tuning = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    return peft.get_peft_model(decoder("Llama"), tuning)


def clip() -> nn.Module:
    text = {"vocab_size": WORDS, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}
    images = {"image_size": 8, "patch_size": 4, "num_channels": 1}
    parts = ({"projection_dim": 8, **SIZES, **own} for own in (text, images))
    config = transformers.CLIPConfig(
        **dict(zip(("text_config", "vision_config"), parts, strict=True)), projection_dim=8
    )
    return transformers.CLIPModel(config)


def lora(model: nn.Module, *targets: str, **options: Any) -> nn.Module:
    """Adapters of a model, none of which begins as zeros: its other half would have no gradient."""
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, lora_alpha=4, target_modules=list(targets), **options)
    )
    for name, param in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(param, std=0.1)
    return adapted


def checkpointed(model: nn.Module, *, reentrant: bool = False) -> nn.Module:
    changed: Any = model
    changed.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model


TRANSFORMERS = {
    "BERT": Entry(bert, labelled, classified),
    "BERT, eager": Entry(lambda: bert(**EAGER), labelled, classified),
    "BERT, frozen embeddings": Entry(frozen_bert, labelled, classified),
    "BERT, LoRA": Entry(lambda: lora(bert(), "query", "value", task_type="SEQ_CLS"), labelled, classified),
    "BERT, bfloat16": Entry(lambda: bert().bfloat16(), labelled, classified, tolerance=HALF),
    "BERT, autocast": Entry(bert, labelled, under_autocast(classified), tolerance=HALF),
    "BERT, gradient checkpointing": Entry(lambda: checkpointed(bert()), labelled, classified),
    "RoBERTa": Entry(lambda: bert("Roberta"), one_segment, classified),
    "DistilBERT": Entry(distilbert, one_segment, classified),
    "GPT-2": Entry(gpt2, continued, each_text),
    "GPT-2, eager": Entry(lambda: gpt2(**EAGER), continued, each_text),
    "GPT-2, LoRA": Entry(lambda: lora(gpt2(), "c_attn", "c_proj", fan_in_fan_out=True), continued, each_text),
    "GPT-2, bfloat16": Entry(lambda: gpt2().bfloat16(), continued, each_text, tolerance=HALF),
    "GPT-2, autocast": Entry(gpt2, continued, under_autocast(each_text), tolerance=HALF),
    "GPT-2, gradient checkpointing": Entry(lambda: checkpointed(gpt2()), continued, each_text),
    "GPT-2, reentrant checkpointing": Entry(
        lambda: checkpointed(gpt2(), reentrant=True), continued, each_text
    ),
    "Llama": Entry(lambda: decoder("Llama"), continued, each_text),
    "Llama, LoRA": Entry(lambda: lora(decoder("Llama"), "q_proj", "v_proj"), continued, each_text),
    "Llama, LoRA, gradient checkpointing": Entry(
        lambda: checkpointed(lora(decoder("Llama"), "q_proj", "v_proj")), continued, each_text
    ),
    "Llama, LoRA, autocast": Entry(
        lambda: lora(decoder("Llama"), "q_proj", "v_proj"),
        continued,
        under_autocast(each_text),
        tolerance=HALF,
    ),
    "Llama, bfloat16": Entry(lambda: decoder("Llama").bfloat16(), continued, each_text, tolerance=HALF),
    "Qwen2": Entry(lambda: decoder("Qwen2"), continued, each_text),
    "Mistral": Entry(lambda: decoder("Mistral"), continued, each_text),
    "Mistral, window": Entry(lambda: decoder("Mistral", sliding_window=3), continued, each_text),
    "ViT": Entry(vit, pictures, classified),
    "ViT, bfloat16": Entry(lambda: vit().bfloat16(), half(pictures), classified, tolerance=HALF),
    "T5": Entry(t5, continued, each_answer),
    "T5, LoRA": Entry(lambda: lora(t5(), "q", "v"), continued, each_answer),
    "T5, bfloat16": Entry(lambda: t5().bfloat16(), continued, each_answer, tolerance=HALF),
    "CLIP": Entry(clip, pairs, each_pair),
    "ALBERT": Entry(
        lambda: bert("Albert", embedding_size=16, classifier_dropout_prob=0.0), one_segment, classified
    ),
    "ModernBERT": Entry(lambda: bert("ModernBert"), one_segment, classified),
    "Longformer": Entry(lambda: bert("Longformer", attention_window=4), one_segment, classified),
    "Gemma": Entry(lambda: decoder("Gemma", head_dim=8), continued, each_text),
    "Mixtral": Entry(lambda: decoder("Mixtral", num_local_experts=2), continued, each_text),
    "Bloom": Entry(
        lambda: transformers.BloomForCausalLM(
            transformers.BloomConfig(
                vocab_size=WORDS, hidden_size=16, n_layer=2, n_head=2, hidden_dropout=0.0
            )
        ),
        continued,
        each_text,
    ),
    "BART": Entry(lambda: seq2seq("Bart"), continued, each_answer),
    "Pegasus": Entry(lambda: seq2seq("Pegasus"), continued, each_answer),
    "Whisper": Entry(whisper, spectra, each_transcript),
    "wav2vec2": Entry(wav2vec2, sounds, classified),
    "ConvNeXt": Entry(
        lambda: over_pictures("ConvNext", hidden_sizes=[4, 8, 8, 8], depths=[1, 1, 1, 1]),
        large_pictures,
        classified,
    ),
    "SegFormer": Entry(
        lambda: over_pictures(
            "Segformer",
            hidden_sizes=[8, 8, 8, 8],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 1, 2, 2],
            decoder_hidden_size=8,
            drop_path_rate=0.0,
            classifier_dropout_prob=0.0,
            hidden_dropout_prob=0.0,
        ),
        large_pictures,
        classified,
    ),
    "Llama, prompt tuning": Entry(prompted, continued, each_prompted),
}
