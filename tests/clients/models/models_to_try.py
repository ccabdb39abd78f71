"""Small models of several architectures and ways of tuning, as the tests' subjects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from fl_sim.clients.batches import NO_CLASS, Example
from fl_sim.clients.models import tuning
from fl_sim.clients.models.architectures.pretrained import without_pooler
from fl_sim.clients.models.architectures.transformer import PRETRAINED
from fl_sim.clients.models.classifier import Classifier
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.models.losses import sentence_losses
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.models.tokenizers import load_tokenizer
from fl_sim.clients.tasks import Classification, NextWord, Task
from fl_sim.data_prep.store.encode import EncodedSplit

VOCABULARY = 4096
CONTEXT = 40
SMALL = ModelSpec(hidden=32, layers=2, heads=4, max_tokens=CONTEXT)
AWD = ModelSpec(name="awd-lstm", hidden=24, layers=3, embedding=16, max_tokens=CONTEXT)
CLASSES = Classification(("business", "sport", "world"))
_BERT_LIKE: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2}
_BERT_LIKE |= {"num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": CONTEXT}
_LLAMA_LIKE = _BERT_LIKE | {"num_key_value_heads": 2}


def small_gpt2(task: Task | None = None, **changes: Any) -> LanguageModel:
    model = load_model(SMALL.model_copy(update=changes), seed=0, task=task)
    return shifted(model) if changes or task else model


def awd_lstm(task: Task | None = None, **changes: Any) -> LanguageModel:
    return shifted(load_model(AWD.model_copy(update=changes), seed=0, task=task))


def shifted(model: LanguageModel) -> LanguageModel:
    """Off the start: there a head or an adapter's factor is zero, and what is multiplied by it has no gradient."""
    shift = np.random.default_rng(5).standard_normal(model.num_parameters) * 0.1
    model.set_vector(model.get_vector() + shift)
    return model


def with_adapters() -> LanguageModel:
    return small_gpt2(lora_rank=3)


@contextmanager
def seeded(seed: int = 1) -> Iterator[None]:
    """Draw the weights of the block from a seed, and leave torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def publish(folder: Path, build: Callable[[], Any], seed: int = 1) -> Path:
    """Write a transformers model of random weights and the bundled tokenizer, as people publish them."""
    with seeded(seed):
        build().save_pretrained(folder)
    load_tokenizer("bundled").save_pretrained(folder)
    return folder


def from_config(config: transformers.PretrainedConfig) -> LanguageModel:
    with seeded():
        module = transformers.AutoModelForCausalLM.from_config(config)
    spec = ModelSpec(name=config.model_type, tokenizer="bundled", max_tokens=CONTEXT)
    return LanguageModel(module, load_tokenizer("bundled"), spec, seed=1)


def untied_gpt2() -> LanguageModel:
    return from_config(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=32, n_layer=2, n_head=4, tie_word_embeddings=False
        )
    )


def llama() -> LanguageModel:
    return from_config(transformers.LlamaConfig(**_LLAMA_LIKE))


def qwen3() -> LanguageModel:
    """With a norm of its own for every attention head."""
    return from_config(transformers.Qwen3Config(**_LLAMA_LIKE, head_dim=8, tie_word_embeddings=True))


OPT = transformers.OPTConfig(**_BERT_LIKE, word_embed_proj_dim=32, ffn_dim=48)


def opt() -> LanguageModel:
    """Its position table is a kind of embedding that the fast path does not describe."""
    return from_config(OPT)


def encoder(config: transformers.PretrainedConfig, **changes: Any) -> LanguageModel:
    """A classifier on a body of random weights, tuned as ``changes`` of the spec say."""
    spec = ModelSpec(name=config.model_type, tokenizer="bundled", max_tokens=CONTEXT, **changes)
    with seeded():
        module: Any = transformers.AutoModel.from_config(config)
        if spec.tune == "matrices":
            tuning.train_matrices(module, PRETRAINED.embedding(module))
        if spec.pooling != "pooler":
            module = without_pooler(module)
        if spec.lora_rank:
            module = PRETRAINED.with_adapters(module, spec, output_layer=False)
        module = Classifier(PRETRAINED, module, len(CLASSES.classes), spec)
    if spec.tune == "head":
        tuning.train_head_only(module, module.head, spec)
    if spec.tune == "bias":
        tuning.train_biases(module, module.head, spec)
    return shifted(LanguageModel(module, load_tokenizer("bundled"), spec, seed=1, task=CLASSES))


def bert(**changes: Any) -> LanguageModel:
    return encoder(transformers.BertConfig(**_BERT_LIKE), **changes)


def roberta(**changes: Any) -> LanguageModel:
    """It numbers positions itself, from its padding id on."""
    return encoder(transformers.RobertaConfig(**(_BERT_LIKE | {"max_position_embeddings": CONTEXT + 2})), **changes)


def albert(**changes: Any) -> LanguageModel:
    """All its layers are one layer, called again and again."""
    return encoder(transformers.AlbertConfig(**_BERT_LIKE, embedding_size=16), **changes)


Build = Callable[[], LanguageModel]

COVERED: dict[str, Build] = {
    "small-gpt2": small_gpt2,
    "untied-gpt2": untied_gpt2,
    "gpt2-lora": with_adapters,
    "gpt2-matrices": lambda: small_gpt2(tune="matrices"),
    "gpt2-bias": lambda: small_gpt2(tune="bias"),
    "llama": llama,
    "qwen3": qwen3,
    "awd-lstm": awd_lstm,
    "awd-lstm-dropout": lambda: awd_lstm(dropout=1.0),
    "awd-lstm-matrices": lambda: awd_lstm(tune="matrices", dropout=1.0),
    "awd-lstm-bias": lambda: awd_lstm(tune="bias", dropout=1.0),
    "gpt2-class": lambda: small_gpt2(CLASSES),
    "gpt2-class-head": lambda: small_gpt2(CLASSES, tune="head"),
    "gpt2-class-bias": lambda: small_gpt2(CLASSES, tune="bias"),
    "gpt2-class-lora": lambda: small_gpt2(CLASSES, lora_rank=3),
    "gpt2-class-mean": lambda: small_gpt2(CLASSES, pooling="mean", normalize=True),
    "bert-class": bert,
    "bert-class-cls": lambda: bert(pooling="cls"),
    "bert-class-pooler": lambda: bert(pooling="pooler"),
    "bert-class-head": lambda: bert(tune="head"),
    "bert-class-matrices": lambda: bert(tune="matrices"),
    "bert-class-bias": lambda: bert(tune="bias"),
    "bert-class-lora": lambda: bert(lora_rank=3),
    "roberta-class": roberta,
    "awd-lstm-class": lambda: awd_lstm(CLASSES),
    "awd-lstm-class-head": lambda: awd_lstm(CLASSES, tune="head", dropout=1.0),
    "awd-lstm-class-dropout": lambda: awd_lstm(CLASSES, dropout=1.0),
}
NOT_COVERED: dict[str, Build] = {"opt": opt, "albert-class": albert}


def examples(*lengths: int, seed: int = 7, task: Task | None = None) -> list[Example]:
    """Random sentences of these lengths in tokens, with some tokens that come back within a sentence, and a class
    each (the fourth has none)."""
    draws = np.random.default_rng(seed)
    made = [draws.integers(0, VOCABULARY, size=n).astype(np.int32) for n in lengths]
    for tokens in made:
        if len(tokens) > 5:
            tokens[4] = tokens[1]
    longest = (task or NextWord()).longest(CONTEXT)
    classes = [NO_CLASS if i == 3 else i % 3 for i in range(len(made))]
    return [Example(t[:longest], c, number=10 + i) for i, (t, c) in enumerate(zip(made, classes, strict=True))]


def as_split(given: Sequence[Example]) -> EncodedSplit:
    return EncodedSplit(np.concatenate([e.tokens for e in given]), np.cumsum([0, *map(len, given)]))


def random_split(sentences: int, shortest: int = 2, longest: int = 20) -> EncodedSplit:
    """Sentences of common words, of lengths in a range (its end excluded)."""
    draws = np.random.default_rng(0)
    lengths = draws.integers(shortest, longest, sentences)
    tokens = draws.integers(0, 400, lengths.sum()).astype(np.int32)
    return EncodedSplit(tokens, np.cumsum([0, *lengths]))


def descent(model: LanguageModel, given: Sequence[Example]) -> np.ndarray:
    """−∇ of the mean loss of sentences in one batch, by plain autograd, float64 (d,)."""
    parts = torch.autograd.grad(sentence_losses(model, given).mean(), list(model.parameters.tensors.values()))
    return -torch.cat([part.flatten() for part in parts]).double().numpy()


def shortened(vector: np.ndarray, radius: float) -> np.ndarray:
    """Π_radius(vector)."""
    return vector * min(1.0, radius / max(float(np.linalg.norm(vector)), 1e-30))
