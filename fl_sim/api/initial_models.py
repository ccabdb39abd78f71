"""Train an initial model of private runs on public text.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     text = Path(folder, "public.txt")
...     _ = text.write_text("Ada wrote a letter.\\n" * 60)
...     sizes = {"hidden": 8, "layers": 1, "heads": 1, "max_tokens": 8}
...     record = pretrain([text], out=Path(folder, "model"), epochs=1, **sizes)
>>> record["sentences"] + record["held_out_sentences"]
60
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from fl_sim.clients.models.model_names import SMALL_GPT2
from fl_sim.config import ConfigError

HELD_OUT_SHARE = 0.02

Architecture = Literal["small-gpt2", "awd-lstm"]


def pretrain(
    text: Sequence[str | Path],
    *,
    out: str | Path,
    model: Architecture = "small-gpt2",
    hidden: int = 128,
    layers: int = 2,
    heads: int = 4,
    embedding: int = 48,
    max_tokens: int = 128,
    epochs: int = 6,
    batch_size: int = 32,
    learning_rate: float = 3e-3,
    seed: int = 0,
    observer: Callable[[int, int, float], None] = lambda step, steps, loss: None,
) -> dict[str, object]:
    """Train a small GPT-2 or AWD-LSTM centrally on public text, as ``fl-sim corpus pretrain`` does.

    Args:
        text: Public text in UTF-8, a sentence per line, plain or .xz.
        out: The model's folder, new or empty.
        model: The architecture.
        hidden: The width of the model.
        layers: The number of blocks, or of LSTM layers.
        heads: The number of attention heads per block of small-gpt2.
        embedding: The width of awd-lstm's word vectors and last layer.
        max_tokens: The context length.
        epochs: The number of passes over the text.
        batch_size: The number of sentences per step.
        learning_rate: The peak of the cosine schedule.
        seed: The seed of initial weights and of the order of sentences.
        observer: Called with the number of steps that are done, that of all, and the loss.

    Returns:
        The content of pretraining.json, with the held-out ``perplexity``.

    Raises:
        ConfigError: a value is out of range, there are fewer than two sentences, or the model diverged.
    """
    from fl_sim.clients.models.frozen_head import has_finite_scores
    from fl_sim.clients.models.language_model import load_model
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.pretraining import PretrainingConfig, split_held_out
    from fl_sim.clients.models.pretraining import pretrain as train
    from fl_sim.data_prep.store.textfiles import decoded_lines
    from fl_sim.reporting.model_card import pretraining_card
    from fl_sim.settings_origin import sentence_sample
    from fl_sim.storage.model_files import CARD, PRETRAINING
    from fl_sim.storage.run_folder import replace_file

    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"`out` is {folder}; allowed: a folder that is new or empty")
    own = {"heads": heads} if model == SMALL_GPT2 else {"embedding": embedding}
    try:
        config = PretrainingConfig(epochs, batch_size, learning_rate, seed=seed)
        spec = ModelSpec(name=model, hidden=hidden, layers=layers, max_tokens=max_tokens, **own)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    lines = [line.strip() for path in text for _, line in decoded_lines(Path(path)) if line.strip()]
    if len(lines) < 2:
        raise ConfigError(f"{', '.join(map(str, text))}: {len(lines)} sentences; allowed: at least 2")
    trained = load_model(spec, seed)
    sentences, held_out = split_held_out(trained.encode(lines), HELD_OUT_SHARE, seed)
    perplexity = train(trained, sentences, held_out, config, observer)
    if not has_finite_scores(trained):
        raise ConfigError(f"`learning_rate` is {learning_rate:g}, at which the model diverged; allowed: a lower one")
    text_sha256 = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    record = {
        "perplexity": perplexity,
        "sentences": len(sentences),
        "held_out_sentences": len(held_out),
        "text_sha256": text_sha256,
        "sentence_sample": sentence_sample(lines),
        "model": spec.model_dump(mode="json"),
        "training": asdict(config),
    }
    trained.save(folder)
    replace_file(folder / PRETRAINING, (json.dumps(record, indent=2) + "\n").encode())
    kind = "causal" if model == SMALL_GPT2 else "own"
    card = pretraining_card(len(sentences), text_sha256, perplexity, kind)
    replace_file(folder / CARD, card.encode())
    return record
