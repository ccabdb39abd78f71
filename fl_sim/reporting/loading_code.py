"""Python code that loads a run's model, by the kind of its folder, for its card; tests run it in such a folder.

>>> "AutoModelForCausalLM.from_pretrained" in code("causal", (), {})
True
>>> sorted(CODE)
['adapters', 'causal', 'classifier', 'merged', 'own']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
