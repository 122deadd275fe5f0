"""Tiny language models, tokenizers and texts, made in memory, for tests of TRL's SFTTrainer."""

import datasets
import peft
import tokenizers
import torch
import transformers
import trl

from dpmech.optim.trl import Privacy, PrivateSFTTrainer

WORDS, SIZE = 40, 24
_SPECIAL = ("<pad>", "<eos>", "<unk>")


def tokenizer():
    """One token a word, w0 to w39; a template for chats, with the marks of the assistant's part."""
    places = {word: place for place, word in enumerate([*_SPECIAL, *(f"w{one}" for one in range(WORDS))])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(places, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )
    found.chat_template = (
        "{% for message in messages %}{% if message['role'] == 'assistant' %}"
        "{{ ' ' }}{% generation %}{{ message['content'] + ' ' + eos_token }}{% endgeneration %}"
        "{% else %}{{ ' ' + message['content'] }}{% endif %}{% endfor %}"
    )
    return found


def llama():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(_SPECIAL) + WORDS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    return transformers.LlamaForCausalLM(config)


def lora():
    return peft.LoraConfig(
        r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM"
    )


def words(index, count):
    drawn = torch.randint(WORDS, (count,), generator=torch.Generator().manual_seed(index))
    return " ".join(f"w{one}" for one in drawn.tolist())


def texts(size=SIZE, first=0):
    """Texts of three to eight words."""
    return datasets.Dataset.from_list(
        [{"text": words(index, 3 + index % 6)} for index in range(first, first + size)]
    )


def answers(size=SIZE):
    """Prompts with completions."""
    return datasets.Dataset.from_list(
        [
            {"prompt": words(index, 3), "completion": " " + words(100 + index, 1 + index % 5)}
            for index in range(size)
        ]
    )


def chats(size=SIZE):
    return datasets.Dataset.from_list(
        [
            {
                "messages": [
                    {"role": "user", "content": words(index, 3)},
                    {"role": "assistant", "content": words(100 + index, 1 + index % 5)},
                ]
            }
            for index in range(size)
        ]
    )


def trainer(folder, calibration, *, privacy=None, data=None, held=None, whole=False, more=None, **options):
    """A PrivateSFTTrainer with batches of six examples, for all weights or those of LoRA."""
    given = {
        "per_device_train_batch_size": 6,
        "num_train_epochs": 1,
        "bf16": False,
        "activation_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "logging_steps": 2,
        "learning_rate": 0.1,
        "optim": "sgd",
    }
    return PrivateSFTTrainer(
        model=llama(),
        args=trl.SFTConfig(str(folder), **given | options),
        train_dataset=texts() if data is None else data,
        eval_dataset=held,
        processing_class=tokenizer(),
        peft_config=None if whole else lora(),
        privacy=Privacy(calibration, **{"clip_norm": 0.5, "generator": 1, "rng": 2} | (privacy or {})),
        **more or {},
    )
