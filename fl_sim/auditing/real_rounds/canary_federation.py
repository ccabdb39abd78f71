"""Run real rounds on canaries beside real users, and read the releases along the canaries.

Each of m copies of a scenario is one protected user u' and one protected entity e' with the users who mention it; all
its sentences are the same canary sentence. A copy that is left out keeps its place, because who mentions whom may be
public: its sentences are selected like all others and then add nothing, to the sum and to the votes. Everything else is
the product's: server (:mod:`fl_sim.auditing.inline_rounds`), selection, and :func:`fl_sim.clients.training.bounded_sum`
on a real model.

A canary sentence has a long gradient in a random direction, through the real code: a linear layer beside the real model
adds nothing to the value of the scores. A canary sentence is [bos, marker, p, q, eos]; its number i = (p, q) is in its
tokens. At its first position the score of the next word gets

    L · r_qᵀ (W a_p − stop_gradient(W a_p)) = 0

where W is the layer's weight, and a_p and r_q are columns of two random rotations. The value is 0, and the gradient of
the loss in W is −(1 − P[next word]) L / predictions times a_p r_qᵀ. The m ≤ P·Q directions a_p r_qᵀ are orthonormal, so
that canaries do not interfere, and a sentence without the marker has no gradient in W. The loss is a function of
parameters and sentence alone, as the proof requires, and the layer is an ``nn.Linear``: ghost norms, batching,
adapters, dropout and local steps treat it like every other layer. L makes the gradient far longer than any clip, and
than the gradient of the same sentence in the real model.

>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> model = canary_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0, side=4)
>>> along_canaries(model, np.zeros((1, model.num_parameters), np.float32)).shape
(1, 16)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fl_sim.auditing.inline_rounds import Release, run_rounds
from fl_sim.auditing.worst_case_corpora import BYSTANDER, CopiedCorpus
from fl_sim.clients import training
from fl_sim.clients.batches import Examples
from fl_sim.clients.models.architectures.architecture import Architecture
from fl_sim.clients.models.architectures.model_source import ModelSource
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.selection import Selection, select_for
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.messages import TrainReply, TrainRequest
from fl_sim.strategies.primitives import streams

if TYPE_CHECKING:
    from fl_sim.clients.batches import Batch, Example
    from fl_sim.clients.ghost_norms import LayerHandler
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.tokenizers import Vocabulary

LENGTH = 1e5
"""L, the length of a canary's gradient before its clip, up to a factor between 0 and 1/4."""

_FIRST = 2  # p and q are the tokens 2, 3, …
_WEIGHT = "canaries.weight"

Floats = NDArray[np.float64]


class CanaryModule(nn.Module):
    """Hold a real module and the canaries' layer.

    Args:
        side: P = Q, the width of the layer, which has P·Q weights.
    """

    inputs_of: torch.Tensor
    outputs_of: torch.Tensor

    def __init__(self, real: nn.Module, side: int, vocabulary: int, seed: int) -> None:
        super().__init__()
        self.real = real
        self.canaries = nn.Linear(side, side, bias=False)
        nn.init.zeros_(self.canaries.weight)
        self.side = side
        self.marker = vocabulary - 1  # the last token
        rng = streams.generator(seed, "canary directions")
        for name in ("inputs_of", "outputs_of"):
            rotation, _ = np.linalg.qr(rng.standard_normal((side, side)))
            self.register_buffer(name, torch.from_numpy(rotation.astype(np.float32)))

    def pull(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the canaries add to the score of the word after the first, (B,): 0, with their gradient.

        Args:
            inputs: token ids, int64 (B, T).
        """
        rows, tokens = inputs.shape
        is_canary = (inputs[:, 1] == self.marker) if tokens >= 4 else inputs.new_zeros(rows, dtype=torch.bool)
        p, q = (inputs[:, k].sub(_FIRST).clamp(0, self.side - 1) if tokens >= 4 else inputs[:, 0] * 0 for k in (2, 3))
        given = self.canaries.weight.new_zeros(rows, tokens, self.side)
        given[:, 0] = self.inputs_of[p] * is_canary.unsqueeze(1)
        output = self.canaries(given)
        moved = (output - output.detach())[:, 0]
        return LENGTH * (moved * self.outputs_of[q] * is_canary.unsqueeze(1)).sum(dim=1)


class CanaryArchitecture(Architecture):
    """Run a `CanaryModule`: the real architecture with the canaries' layer beside it."""

    def __init__(self, real: Architecture) -> None:
        self.real = real
        self.tokenizer = real.tokenizer

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        raise NotImplementedError("canary_model wraps a model that is built")

    def scores(self, module: Any, batch: Batch) -> torch.Tensor:
        """Return the real scores, (B, T, V), with the canaries' gradients."""
        scores = self.real.scores(module.real, batch)
        next_word = batch.inputs[:, min(1, batch.inputs.shape[1] - 1)]
        first = torch.zeros_like(scores[:, 0]).scatter(
            1, next_word.unsqueeze(1), module.pull(batch.inputs).unsqueeze(1)
        )
        return torch.cat([(scores[:, 0] + first).unsqueeze(1), scores[:, 1:]], dim=1)

    def embedding(self, module: Any) -> Any:
        return self.real.embedding(module.real)

    def context(self, module: Any) -> int:
        return self.real.context(module.real)

    def has_dropout(self, module: Any) -> bool:
        return self.real.has_dropout(module.real)

    def draw_masks(self, module: Any, examples: Sequence[Example], batch: Batch, seed: int) -> Any:
        return self.real.draw_masks(module.real, examples, batch, seed)

    def layer_handlers(self) -> Mapping[type[nn.Module], LayerHandler]:
        return self.real.layer_handlers()


def canary_model(spec: ModelSpec, seed: int, side: int) -> LanguageModel:
    """Return the real model of ``spec`` with a layer for ``side``² canaries.

    Args:
        spec: the real model, with its adapters and dropout.
        seed: of the real model's initial weights, and of the canaries' directions.
        side: P = Q.
    """
    real = load_model(spec, seed)
    module = CanaryModule(real.module, side, real.vocabulary_size, seed)
    source = ModelSource(CanaryArchitecture(real.architecture), spec.name)
    return LanguageModel(module, real.tokenizer, spec, seed, source=source)


def canary_tokens(model: LanguageModel, number: int) -> NDArray[np.int32]:
    """Return the tokens of canary i = ``number``, int32 (5,)."""
    module: Any = model.module
    p, q = divmod(number, module.side)
    return np.array([model.bos_id, module.marker, _FIRST + p, _FIRST + q, model.eos_id], dtype=np.int32)


def along_canaries(model: LanguageModel, vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the inner products of vectors, (k, d), with the directions of all canaries, float64 (k, P·Q)."""
    module: Any = model.module
    left, right = module.outputs_of.double().numpy(), module.inputs_of.double().numpy()
    parts = [model.parameters.views(torch.from_numpy(np.asarray(vector)))[_WEIGHT].numpy() for vector in vectors]
    return np.stack([(right @ part.T.astype(np.float64) @ left.T).ravel() for part in parts])


def run_real_rounds(
    model: LanguageModel,
    ownership: Ownership,
    sentences: Sequence[NDArray[np.integer]],
    keep: Callable[[Selection], Selection],
    plan: PrivacyPlan,
    seed: int,
    observe: Callable[[Release], None],
) -> None:
    """Run the rounds of ``plan`` with the product's selection and bounded sums on a real model.

    Args:
        model: the real model; it has its first parameters again afterwards.
        keep: returns a selection without the sentences that add nothing in this corpus.
    """
    offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in sentences])]).astype(np.int64)
    examples = Examples(EncodedSplit(np.concatenate(sentences).astype(np.int32), offsets))

    def answer(request: TrainRequest) -> TrainReply:
        selection = keep(select_for(request.rule, ownership, request.users, request.round_seed))
        model.set_vector(request.vector)
        return training.bounded_sum(model, examples, selection, request.rule, request.round_seed)

    initial = model.get_vector()
    run_rounds(plan, ownership.sentences_per_user, initial, answer, seed, observe)
    model.set_vector(initial)


def release_along_canaries(
    model: LanguageModel,
    corpus: CopiedCorpus,
    texts: Sequence[str],
    included: NDArray[np.bool_],
    plan: PrivacyPlan,
    seed: int,
    observe: Callable[[Release], None] = lambda release: None,
) -> Floats:
    """Run all rounds of ``plan``; return the noisy sums along the canaries, in user clips, float64 (T, m).

    Args:
        model: a model with at least m canaries (:func:`canary_model`).
        corpus: m copies of a scenario, and bystanders.
        texts: the sentence of each bystander.
        included: whether each copy is included, bool (m,).
    """
    rows = list[Floats]()
    copy = corpus.copy_of_sentence
    kept = np.append(included, True)[copy]  # the last is BYSTANDER's
    canaries = [canary_tokens(model, number) for number in range(corpus.copies)]
    sentences = [canaries[number] for number in copy[copy != BYSTANDER]]
    sentences += [example.tokens for example in model.encode(list(texts))]

    def read(release: Release) -> None:
        along = along_canaries(model, release.noisy_sum[None])[0, : corpus.copies]
        rows.append(along / plan.mechanism.user_clip(release.clip_norm))
        observe(release)

    def keep(selection: Selection) -> Selection:
        return selection.only(kept[selection.sentences])

    run_real_rounds(model, corpus.ownership, sentences, keep, plan, seed, read)
    return np.array(rows)
