"""The model card of a run, ``model/README.md``: what the model is, what its ε promises, and how to load it.

The card travels with the model, so it has only what may be released (docs/privacy.md): settings that are public by
assumption, ε at public bounds, numbers of rounds. Losses, held-out metrics, counts of users and sentences, percentiles,
paths and the fingerprint of private text stay out. Hugging Face reads the lines at its top.

First the code that loads a run's model, by the kind of its folder, which tests run in such a folder; then what the
guarantee says about text that the model generates.

Generating reads the released model and the prompts alone. By the post-processing property of differential privacy such
text has the ε and δ of the model, however much of it is made, if the prompts do not depend on private text
(docs/privacy.md).

>>> "AutoModelForCausalLM.from_pretrained" in code("causal", (), {})
True
>>> sorted(CODE)
['adapters', 'causal', 'classifier', 'merged', 'own']

>>> NO_GUARANTEE_OF_TEXT
'no guarantee (ε = ∞): the model may repeat private sentences. Do not release these texts.'

>>> print(front_matter(Card(kind="causal", guarantee=True, base="org/model")))
---
base_model: org/model
library_name: transformers
license: unknown
pipeline_tag: text-generation
tags:
- federated-learning
- fl_sim
- differential-privacy
---
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fl_sim.clients.models.architectures.architecture import ARCHITECTURE_KEY
from fl_sim.clients.models.architectures.model_source import is_registered
from fl_sim.clients.models.model_names import AWD_LSTM, MINILM, SMOLLM2
from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.formats import format_delta, format_epsilon, format_number, printable
from fl_sim.reporting.run_facts import (
    CLASSES_ARE_PUBLIC,
    DETECTED,
    NO_GUARANTEE_WORDS,
    PUBLIC_INPUTS,
    SEQUENCE_OF_MODELS,
    SETTINGS_FROM_CORPUS,
    RunFacts,
)
from fl_sim.storage.model_files import CARD
from fl_sim.storage.run_folder import DIVERGED, INTERRUPTED, RunFolder, replace_file
from fl_sim.strategies.ledger import LedgerError

_CAUSAL = """\
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoModelForCausalLM.from_pretrained(".")
generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
print(generate(tokenizer.bos_token + "The meeting", max_new_tokens=10)[0]["generated_text"])
"""
_ADAPTERS = """\
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(".")
model = AutoPeftModelForCausalLM.from_pretrained(".")  # the model below must be where adapter_config.json says
words = tokenizer(tokenizer.bos_token + "The meeting", return_tensors="pt")
print(tokenizer.decode(model.generate(**words, max_new_tokens=10)[0]))
"""
_OWN = """\
from fl_sim.clients.generation import generate
from fl_sim.clients.generation import Sampling
from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec

model = load_model(ModelSpec(name="."), seed=0)  # model.module is the torch module
print(generate(model, ["The meeting"], Sampling(max_tokens=10))[0].text)
"""
_CLASSIFIER = """\
import torch

from fl_sim.clients.models.language_model import load_model
from fl_sim.clients.models.model_spec import ModelSpec
from fl_sim.clients.tasks import make_task

classes = {classes!r}
spec = ModelSpec(name=".", pooling={pooling!r}, normalize={normalize!r})
model = load_model(spec, seed=0, task=make_task("classification", classes))
batch = model.batch(model.encode(["It rained all day."], [0]))
with torch.no_grad():
    probabilities = model.logits(batch)[0, 0].softmax(-1)
print(dict(zip(classes, probabilities.tolist())))
"""

CODE = {"causal": _CAUSAL, "adapters": _ADAPTERS, "merged": _OWN, "own": _OWN, "classifier": _CLASSIFIER}
"""Code by kind: a causal model of transformers, adapters on a model in a folder or on the hub, adapters on a model
that fl_sim knows by name, an architecture of fl_sim's own, and a classifier."""

NOT_BY_TRANSFORMERS = (
    "The pipeline `text-classification` of transformers would put a new, random head on this body, because it has no "
    "head of this form. `head.safetensors` has the head's `weight` and `bias`, in the order of the classes."
)


def code(kind: str, classes: Sequence[str], spec: Mapping[str, Any]) -> str:
    """Return the code that loads a model of ``kind``, for the folder it lies in.

    Args:
        kind: a key of :data:`CODE`.
        classes: that it predicts; none for the next word.
        spec: the content of its spec.json.
    """
    if kind != "classifier":
        return CODE[kind]
    made = spec.get("spec") or {}
    return _CLASSIFIER.format(
        classes=tuple(classes), pooling=made.get("pooling"), normalize=bool(made.get("normalize"))
    )


NO_GUARANTEE_OF_TEXT = f"{NO_GUARANTEE_WORDS}: the model may repeat private sentences. Do not release these texts."

_UNITS = {
    "any": "any user together with any entity",
    "any_robust": "the same, with the stated number of mentions missed by the tagger",
    "stated": "any user together with an entity within the stated bound",
    "stated_robust": "the same, with the stated number of mentions missed by the tagger",
    "user": "any user",
}
_COVERED = (
    "post-processing of a model with {epsilon}, δ = {delta}. More texts do not raise ε. Prompts must not be taken from "
    "private text. What ε leaves out: fl-sim report."
)


@dataclass(frozen=True, slots=True)
class TextNote:
    """The guarantee of texts that a model generates.

    Attributes:
        guarantee: whether there is one.
        delta: δ at which each ε is stated.
        epsilon: ε by the metrics' names, at public bounds; empty without a guarantee.
        note: the same in words.
    """

    guarantee: bool
    delta: float | None
    epsilon: dict[str, float]
    note: str

    def record(self) -> dict[str, Any]:
        """Return the note as JSON values."""
        return asdict(self)


def note_on_texts(facts: RunFacts) -> TextNote:
    """Return the guarantee of texts that the model of a run generates.

    Raises:
        LedgerError: the run's ledger does not support its ε.
    """
    if facts.ledger.problem:
        raise LedgerError(facts.ledger.problem)
    epsilon = {unit: value for unit, value in facts.at_public_bounds.items() if not unit.endswith("_robust")}
    if not epsilon:
        return TextNote(False, facts.delta, {}, NO_GUARANTEE_OF_TEXT)
    words = ", ".join(f"ε {format_epsilon(value)} for {_UNITS[unit]}" for unit, value in epsilon.items())
    note = _COVERED.format(epsilon=words, delta=format_delta(facts.delta))
    return TextNote(True, facts.delta, {f"epsilon_{unit}": value for unit, value in epsilon.items()}, note)


_ON_THE_HUB = {
    SMOLLM2: "HuggingFaceTB/SmolLM2-135M-Instruct",
    MINILM: "sentence-transformers/all-MiniLM-L6-v2",
}
_LIBRARIES = {"causal": "transformers", "adapters": "peft"}
_SEEDED = (
    "Noise and samples come from a seed, which `spec.json` has: **whoever has this folder can compute the noise.** ε "
    "holds against readers who do not have it. Train with `privacy.secure_noise` before a model leaves the house."
)
_SECURE = "Noise and samples come from the operating system's generator and were not kept."
_OWNER = "`lineage/owner.json` is private: remove it before the model is given away."
_FORECAST = (
    "The noise is that of a larger population (`privacy.noise_cohort`): this model is a forecast, not for release."
)
_LEFT_OUT = (
    "Losses, held-out metrics, counts of users and sentences, and ε at percentiles of the corpus are read off private "
    "text, and no ε covers them. They are not in this card."
)


@dataclass(frozen=True)
class Card:
    """What the lines at the top of a card depend on.

    Attributes:
        kind: how the model loads, a key of :data:`fl_sim.reporting.model_card.CODE`.
        guarantee: whether some ε is finite.
        classifies: whether it predicts classes.
        base: the Hugging Face name of the model that training began with, if it has one.
        english: whether it was trained on a corpus that ships, which is in English.
    """

    kind: str
    guarantee: bool
    classifies: bool = False
    base: str | None = None
    english: bool = False


def front_matter(card: Card) -> str:
    """Return the lines at the top, between two lines of dashes."""
    from huggingface_hub import ModelCardData

    tags = ["federated-learning", "fl_sim", *(["differential-privacy"] if card.guarantee else [])]
    data = ModelCardData(
        base_model=card.base,
        language="en" if card.english else None,
        library_name=_LIBRARIES.get(card.kind, "fl_sim"),
        license="unknown",
        pipeline_tag="text-classification" if card.classifies else "text-generation",
        tags=tags,
    )
    return f"---\n{data.to_yaml(line_break=chr(10))}\n---"


def write_card(run: RunFolder, facts: RunFacts) -> None:
    """Write the card of the model in a run's folder, replacing the one before."""
    replace_file(run.model_dir / CARD, card_of(run, facts).encode())


def card_of(run: RunFolder, facts: RunFacts) -> str:
    """Return the card of the model in a run's folder, as Markdown.

    Args:
        run: the folder, with the model.
        facts: of the run; every ε on the card is theirs.

    Raises:
        LedgerError: the run's ledger does not support its ε.
    """
    guarantee = note_on_texts(facts).guarantee
    settings, spec = run.config.get("run") or {}, _object(run, "spec.json")
    kind = _kind(run, spec)
    classes = tuple(spec.get("classes") or ())
    corpus, base = str((settings.get("corpus") or {}).get("path")), _base(settings)
    card = Card(kind, guarantee, bool(classes), base, corpus in SHIPPED_CORPORA)
    parts = [
        front_matter(card),
        _head(facts, card),
        "\n\n".join(["## Privacy", *_privacy(facts, card, settings.get("privacy") or {})]),
        _training(run, facts, settings, corpus),
        f"## How to load it\n\nIn this folder:\n\n```python\n{code(kind, classes, spec)}```",
        *([NOT_BY_TRANSFORMERS] if classes else []),
        _versions(run),
    ]
    return "\n\n".join(parts) + "\n"


def pretraining_card(record: Mapping[str, Any], kind: str) -> str:
    """Return the card of a model that ``fl-sim corpus pretrain`` made of public text.

    Args:
        record: the content of its pretraining.json.
        kind: how it loads, a key of :data:`fl_sim.reporting.model_card.CODE`.
    """
    trained = (
        f"Trained by `fl-sim corpus pretrain` on {format_number(record['sentences'])} sentences of text that counts as "
        f"public (SHA-256 `{record['text_sha256']}`), without privacy: {NO_GUARANTEE_WORDS}. Held-out perplexity per "
        f"token: {record['perplexity']:.1f}. `pretraining.json` has all settings."
    )
    head = f"{front_matter(Card(kind, guarantee=False))}\n\n# A language model of public text\n\n{trained}"
    return f"{head}\n\n## How to load it\n\nIn this folder:\n\n```python\n{code(kind, (), {})}```\n"


def _head(facts: RunFacts, card: Card) -> str:
    what = "text classifier" if card.classifies else "language model"
    how = (
        "with differential privacy for users and entities" if card.guarantee else "**without any guarantee of privacy**"
    )
    lines = [
        f"# A {what} by {printable(facts.strategy)}",
        f"A {what}, trained by simulated federated learning {how}.",
    ]
    if facts.stopped == DIVERGED:
        lines.append("**The training diverged: the model is not finite and of no use.**")
    lines.append("Its licence is for its owner to state: fl_sim does not know the terms of the text.")
    return "\n\n".join(lines)


def _privacy(facts: RunFacts, card: Card, settings: Mapping[str, Any]) -> list[str]:
    """Return the paragraphs on the guarantee.

    Args:
        facts: of the run.
        card: whether there is a guarantee, and whether the model predicts classes.
        settings: ``[privacy]`` of the configuration.
    """
    claimed = facts.epsilon_as_published
    words = f"The UeDP paper claims ε {format_epsilon(claimed)} for this algorithm: a claim, and no guarantee."
    claim = [] if claimed is None else [words]
    if not card.guarantee:
        said = f"**{_capital(NO_GUARANTEE_WORDS)}.** The model may repeat private sentences. Do not release it."
        return [said, *claim]
    rows = [f"| {_UNITS[unit]} | {format_epsilon(value)} |" for unit, value in facts.at_public_bounds.items()]
    table = [f"| protected | ε at δ = {format_delta(facts.delta)} |", "|---|---|", *rows]
    points = "\n".join(f"* {point}" for point in _points(facts, card, settings) if point)
    return ["\n".join(table), *claim, points]


def _points(facts: RunFacts, card: Card, settings: Mapping[str, Any]) -> list[str | None]:
    """Return what the ε rests on and what it leaves out, a sentence or two each; None where nothing is to be said.

    Settings that were chosen on the corpus may tell of its text: they, and bounds among them, stay out.
    """
    from_corpus, trained = bool(facts.settings_from_corpus), facts.composed
    graph, entities = facts.basis() or ("", DETECTED)
    described = None if from_corpus else facts.mechanism_settings
    return [
        graph,
        None if from_corpus else facts.bounds_in_words(),
        entities,
        f"{facts.unsought}." if facts.unsought else None,
        "Entities on a list of public names are not protected." if settings.get("public_names") else None,
        f"Mechanism: {', '.join(described)}." if described else None,
        SEQUENCE_OF_MODELS,
        f"ε includes the earlier trainings of the initial model: {trained}." if trained else None,
        _SECURE if settings.get("secure_noise") else _SEEDED,
        _FORECAST if settings.get("noise_cohort") else None,
        PUBLIC_INPUTS.format(weights="" if trained else "initial weights, "),
        CLASSES_ARE_PUBLIC if card.classifies else None,
        f"{SETTINGS_FROM_CORPUS} by ε." if from_corpus else None,
        _LEFT_OUT,
        _OWNER,
    ]


def _training(run: RunFolder, facts: RunFacts, settings: Mapping[str, Any], corpus: str) -> str:
    """Return the training in words: rounds, strategy, the model it began with, and the data without their path."""
    head = (run.result or {}).get("ledger") or {}
    rounds = f"{format_number(facts.rounds_done)} of {format_number(facts.rounds)}"
    stopped = "; no ε covers the decision to stop" if facts.stopped == INTERRUPTED else ""
    protects = f", which protects {facts.protects}" if facts.protects else ""
    if corpus in SHIPPED_CORPORA:
        fingerprint = (run.config.get("corpus") or {}).get("fingerprint")
        data = f"The corpus `{corpus}` that fl_sim ships, fingerprint `{fingerprint}`."
    else:
        data = (
            "Private text. Its fingerprint is not stated, for it would tell the text from the one without a user; the "
            "ledger in `lineage/` is bound to it by a salted digest."
        )
    lines = [
        f"* Rounds: {rounds}{stopped}. Strategy: {printable(facts.strategy)}{protects}.",
        f"* Began with: {_began_with(settings)}.",
        f"* Data: {data}",
        *([f"* Ledger: run `{head['run']}`, {head['entries']} releases, hash `{head['last']}`."] if head else []),
    ]
    return "## Training\n\n" + "\n".join(lines)


def _began_with(settings: Mapping[str, Any]) -> str:
    """Return the initial model in words, a folder without its path."""
    name = str((settings.get("model") or {}).get("name"))
    if is_registered(name):
        return f"`{name}` of fl_sim"
    return f"`{name}`" if _base(settings) else "a model of its owner"


def _base(settings: Mapping[str, Any]) -> str | None:
    """Return the Hugging Face name of the initial model; None for a folder, an import path, or one that fl_sim made."""
    name = str((settings.get("model") or {}).get("name"))
    if name in _ON_THE_HUB:
        return _ON_THE_HUB[name]
    is_hub_name = not is_registered(name) and not name.startswith(("/", ".")) and ":" not in name and "\\" not in name
    return name if is_hub_name else None


def _kind(run: RunFolder, spec: Mapping[str, Any]) -> str:
    """Return how the model in a run's folder loads."""
    if spec.get("classes"):
        return "classifier"
    if (run.model_dir / "adapter_config.json").is_file():
        base = str(_object(run, "adapter_config.json").get("base_model_name_or_path"))
        return "merged" if is_registered(base) else "adapters"
    config = _object(run, "config.json")
    return "own" if config.get("model_type") == AWD_LSTM or ARCHITECTURE_KEY in config else "causal"


def _object(run: RunFolder, name: str) -> dict[str, Any]:
    file = run.model_dir / name
    return dict(json.loads(file.read_bytes())) if file.is_file() else {}


def _versions(run: RunFolder) -> str:
    known = run.environment.get("libraries") or {}
    libraries = {name: known.get(name) for name in ("torch", "transformers", "flwr")}
    named = {"fl_sim": run.environment.get("fl_sim"), **libraries}
    words = ", ".join(f"{name} {version}" for name, version in named.items() if version)
    return f"## Software\n\n{words}, Python {run.environment.get('python')}."


def _capital(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}"
