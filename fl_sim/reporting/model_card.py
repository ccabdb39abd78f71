"""The model card of a run, ``model/README.md``: what the model is, what its ε promises, and how to load it.

The card (pages/model_card.md) travels with the model, so it has only what may be released (docs/privacy.md): settings
that are public by assumption, ε at public bounds, numbers of rounds. Losses, held-out metrics, counts of users and
sentences, percentiles, paths and the fingerprint of private text stay out. Hugging Face reads the lines at its top.

>>> "AutoModelForCausalLM.from_pretrained" in code("causal", (), {})
True
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fl_sim.clients.models.architectures.model_source import is_registered
from fl_sim.clients.models.model_names import MINILM, SMOLLM2
from fl_sim.data_prep import SHIPPED_CORPORA
from fl_sim.data_prep.records import OF_THIS_CORPUS
from fl_sim.formats import format_delta, format_epsilon, format_number, printable
from fl_sim.reporting.run_facts import (
    CHOSEN,
    CLASSES_ARE_PUBLIC,
    LEFT_OUT,
    NO_GUARANTEE_WORDS,
    OF_A_SWEEP,
    PUBLIC_INPUTS,
    SEQUENCE_OF_MODELS,
    RunFacts,
)
from fl_sim.reporting.templates import render_markdown
from fl_sim.storage.model_files import is_own_format, read_ancestors
from fl_sim.storage.run_folder import INTERRUPTED, RunFolder
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

CODE = {"causal": _CAUSAL, "adapters": _ADAPTERS, "own": _OWN, "classifier": _CLASSIFIER}
"""Code by kind: a causal model of transformers, adapters on a model in a folder or on the hub, what fl_sim alone loads
(an architecture of its own, adapters on a model that it knows by name), and a classifier."""


def code(kind: str, classes: Sequence[str], settings: Mapping[str, object]) -> str:
    """Return the code that loads a model of ``kind``, for the folder it lies in.

    Args:
        kind: a key of :data:`CODE`.
        classes: that it predicts; none for the next word.
        settings: of the model, as its spec.json has them.
    """
    if kind != "classifier":
        return CODE[kind]
    return _CLASSIFIER.format(
        classes=tuple(classes), pooling=settings.get("pooling"), normalize=bool(settings.get("normalize"))
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


class TextsGuarantee(TypedDict):
    """Whether generated texts have a guarantee, its δ, ε at public bounds by the metrics' names, and that in words."""

    guarantee: bool
    delta: float | None
    epsilon: dict[str, float]
    note: str


def note_on_texts(facts: RunFacts) -> TextsGuarantee:
    """Return the guarantee of texts that the model of a run generates.

    Raises:
        LedgerError: the run's ledger does not support its ε.
    """
    if facts.ledger.problem:
        raise LedgerError(facts.ledger.problem)
    epsilon = {unit: value for unit, value in facts.at_public_bounds.items() if not unit.endswith("_robust")}
    said = {unit: _UNITS[unit] + facts.apart(unit) for unit in epsilon}
    words = ", ".join(f"ε {format_epsilon(value)} for {said[unit]}" for unit, value in epsilon.items())
    note = _COVERED.format(epsilon=words, delta=format_delta(facts.delta)) if epsilon else NO_GUARANTEE_OF_TEXT
    limits = {LEFT_OUT: facts.left_out, CHOSEN: facts.settings_from_corpus, OF_A_SWEEP: OF_A_SWEEP in facts.warnings}
    besides = [words for words, holds in limits.items() if holds and epsilon]
    return {
        "guarantee": bool(epsilon) and not facts.left_out,
        "delta": facts.delta,
        "epsilon": {f"epsilon_{unit}": value for unit, value in epsilon.items()},
        "note": " ".join([note, *besides]),
    }


_LIBRARIES = ("torch", "transformers", "flwr")
_ON_THE_HUB = {
    SMOLLM2: "HuggingFaceTB/SmolLM2-135M-Instruct",
    MINILM: "sentence-transformers/all-MiniLM-L6-v2",
}


def front_matter(kind: str, *, guarantee: bool = False, base: str | None = None, english: bool = False) -> str:
    """Return the lines at the top, between two lines of dashes.

    Args:
        kind: how the model loads, a key of :data:`CODE`.
        guarantee: whether some ε is finite.
        base: the Hugging Face name of the model that training began with, if it has one.
        english: whether it was trained on a corpus that ships, which is in English.
    """
    from huggingface_hub import ModelCardData

    data = ModelCardData(
        base_model=base,
        language="en" if english else None,
        library_name={"causal": "transformers", "adapters": "peft"}.get(kind, "fl_sim"),
        license="unknown",
        pipeline_tag="text-classification" if kind == "classifier" else "text-generation",
        tags=["federated-learning", "fl_sim", *(["differential-privacy"] if guarantee else [])],
    )
    return f"---\n{data.to_yaml(line_break=chr(10))}\n---"


def card_of(run: RunFolder, facts: RunFacts) -> str:
    """Return the card of the model in a run's folder, as Markdown; every ε on it is that of the facts.

    Raises:
        LedgerError: the run's ledger does not support its ε.
    """
    note, public = note_on_texts(facts), facts.at_public_bounds
    guarantee = bool(note["epsilon"])
    spec = _object(run, "spec.json")
    kind, classes = _kind(run, spec), tuple(spec.get("classes") or ())
    corpus = str(run.section("run", "corpus").get("path"))
    model = str(run.section("run", "model").get("name"))
    base = _base(model)
    shipped = corpus in SHIPPED_CORPORA
    # Settings that were chosen on the corpus may tell of its text: they, and bounds among them, stay out.
    from_corpus = bool(facts.settings_from_corpus)
    of_entities = any(not unit.startswith("user") for unit in public)
    told, whom = facts.basis(of_entities), "users and entities" if of_entities else "users"
    basis = [*told[:2], "" if from_corpus else facts.bounds_in_words(), *told[2:]]
    libraries = run.environment.get("libraries") or {}
    versions = {"fl_sim": run.environment.get("fl_sim")} | {name: libraries.get(name) for name in _LIBRARIES}
    named = [f"{name} {version}" for name, version in versions.items() if version]
    return render_markdown(
        "model_card.md",
        facts=facts,
        protects=facts.protects if of_entities or not guarantee else None,
        CHOSEN=CHOSEN,
        LEFT_OUT=LEFT_OUT,
        OF_A_SWEEP=OF_A_SWEEP,
        INTERRUPTED=INTERRUPTED,
        front_matter=front_matter(kind, guarantee=note["guarantee"], base=base, english=shipped),
        what="text classifier" if classes else "language model",
        how=f"with differential privacy for {whom}" if guarantee else "**without any guarantee of privacy**",
        strategy=printable(facts.strategy),
        epsilon=[(_UNITS[unit] + facts.apart(unit), format_epsilon(value)) for unit, value in public.items()],
        delta=format_delta(facts.delta),
        claimed=None if facts.epsilon_as_published is None else format_epsilon(facts.epsilon_as_published),
        basis=[text for text in basis if text],
        mechanism=None if from_corpus else ", ".join(facts.mechanism_settings or ()),
        settings=run.section("run", "privacy"),
        of_this_corpus=[warning for warning in facts.warnings if OF_THIS_CORPUS in warning],
        seeded_before=_rests_on_a_seed(run),
        sequence_of_models=SEQUENCE_OF_MODELS,
        public_inputs=PUBLIC_INPUTS.format(weights="" if facts.composed else "initial weights, "),
        classes_are_public=CLASSES_ARE_PUBLIC,
        classes=classes,
        rounds=f"{format_number(facts.rounds_done)} of {format_number(facts.rounds)}",
        began_with=f"`{model}` of fl_sim" if is_registered(model) else f"`{model}`" if base else "a model of its owner",
        corpus=corpus,
        fingerprint=run.fingerprint if shipped else None,
        ledger=(run.result or {}).get("ledger"),
        code=code(kind, classes, spec.get("spec") or {}),
        software=", ".join([*named, f"Python {run.environment.get('python')}"]),
    )


def pretraining_card(sentences: int, text_sha256: str, perplexity: float, kind: str) -> str:
    """Return the card of a model that ``fl-sim corpus pretrain`` made of public text."""
    trained = (
        f"Trained by `fl-sim corpus pretrain` on {format_number(sentences)} sentences of text that counts as "
        f"public (SHA-256 `{text_sha256}`), without privacy: {NO_GUARANTEE_WORDS}. Held-out perplexity per "
        f"token: {perplexity:.1f}. `pretraining.json` has all settings."
    )
    head = f"{front_matter(kind)}\n\n# A language model of public text\n\n{trained}"
    return f"{head}\n\n## How to load it\n\nIn this folder:\n\n```python\n{code(kind, (), {})}```\n"


def _rests_on_a_seed(run: RunFolder) -> bool:
    """Return whether an earlier run that trained the initial model had seeded noise."""
    entries = [entry for ancestor in read_ancestors(run.path).ancestors for entry in ancestor.ledger.entries]
    return any(entry.terms.noise == "seeded" for entry in entries)


def _base(name: str) -> str | None:
    """Return the Hugging Face name of the initial model; None for a folder, an import path, or one that fl_sim made."""
    if name in _ON_THE_HUB:
        return _ON_THE_HUB[name]
    is_hub_name = not is_registered(name) and not name.startswith(("/", ".")) and ":" not in name and "\\" not in name
    return name if is_hub_name else None


def _kind(run: RunFolder, spec: Mapping[str, object]) -> str:
    """Return how the model in a run's folder loads."""
    if spec.get("classes"):
        return "classifier"
    if (run.model_dir / "adapter_config.json").is_file():
        base = str(_object(run, "adapter_config.json").get("base_model_name_or_path"))
        return "own" if is_registered(base) else "adapters"
    return "own" if is_own_format(_object(run, "config.json")) else "causal"


def _object(run: RunFolder, name: str) -> dict[str, Any]:
    file = run.model_dir / name
    return dict(json.loads(file.read_bytes())) if file.is_file() else {}
