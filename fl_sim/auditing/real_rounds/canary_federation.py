"""Run real rounds on users and entities of canaries beside real users, and read the releases along the canaries.

Each of m units is one protected user u' and one protected entity e' with the users who mention it; all its sentences
are the same canary sentence. A unit that is left out keeps its place, because who mentions whom may be public: its
sentences are selected like all others and then add nothing, to the sum and to the votes. Everything else is the
product's: the Flower strategy on the inline grid (user sampling, noise, denominator, adaptive clip, server step),
:func:`fl_sim.clients.selection.select_for`, and :func:`fl_sim.clients.training.bounded_sum` on a real model.

First the wrapper of a real model, in which a canary sentence has a long gradient in a random direction, through the
real code.

The wrapper adds one linear layer beside the real model and nothing to the value of the scores. A canary sentence is
[bos, marker, p, q, eos]; its number i = (p, q) is in its tokens. At its first position the score of the next word gets

    L · r_qᵀ (W a_p − stop_gradient(W a_p)) = 0

where W is the layer's weight, and a_p and r_q are columns of two random rotations. The value is 0, and the gradient of
the loss in W is −(1 − P[next word]) L / predictions times a_p r_qᵀ. The m ≤ P·Q directions a_p r_qᵀ are orthonormal, so
that canaries do not interfere, and a sentence without the marker has no gradient in W. The loss is a function of
parameters and sentence alone, as the proof requires, and the layer is an ``nn.Linear``: ghost norms, batching,
adapters, dropout and local steps treat it like every other layer. L makes the gradient far longer than any clip, and
than the gradient of the same sentence in the real model.

>>> from fl_sim.clients.models.model_spec import ModelSpec
>>> model = canary_model(ModelSpec(hidden=8, layers=1, heads=2), seed=0, side=4)
>>> direction(model, 6).shape == (model.num_parameters,), round(float(np.linalg.norm(direction(model, 6))), 6)
(True, 1.0)

>>> units = CanaryUnits.of(Scenario(entity_users=2, entity_sentences=1, user_sentences=3), units=4, texts=())
>>> units.ownership.num_users, units.ownership.num_sentences, units.unit_of_sentence[:5].tolist()
(12, 20, [0, 0, 0, 0, 0])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from numpy.typing import NDArray
from torch import nn

from fl_sim.auditing.worst_case_corpora import Scenario
from fl_sim.clients import training
from fl_sim.clients.batches import Examples
from fl_sim.clients.models.architectures.architecture import Architecture
from fl_sim.clients.models.architectures.model_source import ModelSource
from fl_sim.clients.models.language_model import LanguageModel, load_model
from fl_sim.clients.selection import Selection, select_for
from fl_sim.data_prep.store.encode import EncodedSplit
from fl_sim.data_prep.store.ownership import Ownership
from fl_sim.engines.engine import run_inline
from fl_sim.strategies.aggregation import BoundedSumStrategy, Federation, RoundParts
from fl_sim.strategies.mechanism import PrivacyPlan
from fl_sim.strategies.messages import TRAIN_ACTION, TrainReply, TrainRequest, arrays_to_vector, vector_to_arrays
from fl_sim.strategies.postprocessing import ServerOptimizerConfig, build_optimizer
from fl_sim.strategies.primitives import streams

if TYPE_CHECKING:
    from fl_sim.clients.batches import Batch, Example
    from fl_sim.clients.ghost_norms import LayerHandler
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.tokenizers import Vocabulary

LENGTH = 1e5
"""L, the length of a canary's gradient before its clip, up to a factor between 0 and 1/4."""

_MARKERS_FROM_END = 1  # the marker is the last token of the vocabulary; p and q are the tokens 2, 3, …
_FIRST = 2


class CanaryModule(nn.Module):
    """Hold a real module and the canaries' layer.

    Args:
        real: the real module.
        side: P = Q, the width of the layer, which has P·Q weights.
        vocabulary: the number of tokens.
        seed: of the rotations.
    """

    inputs_of: torch.Tensor
    outputs_of: torch.Tensor

    def __init__(self, real: nn.Module, side: int, vocabulary: int, seed: int) -> None:
        super().__init__()
        self.real = real
        self.canaries = nn.Linear(side, side, bias=False)
        nn.init.zeros_(self.canaries.weight)
        self.side = side
        self.marker = vocabulary - _MARKERS_FROM_END
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
    """Run a `CanaryModule`: the real architecture with the canaries' layer beside it.

    Args:
        real: the real architecture.
    """

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


def direction(model: LanguageModel, number: int) -> NDArray[np.float64]:
    """Return the direction in which canary i moves the model, a unit vector, float64 (d,)."""
    vector = torch.zeros(model.num_parameters)
    module: Any = model.module
    p, q = divmod(number, module.side)
    model.parameters.views(vector)[_WEIGHT].copy_(torch.outer(module.outputs_of[q], module.inputs_of[p]))
    return vector.double().numpy()


def along_canaries(model: LanguageModel, vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the inner products of vectors with the directions of all canaries.

    Args:
        model: the model, with P·Q canaries.
        vectors: (k, d).

    Returns:
        float64 (k, P·Q).
    """
    module: Any = model.module
    left, right = module.outputs_of.double().numpy(), module.inputs_of.double().numpy()
    parts = [model.parameters.views(torch.from_numpy(np.asarray(vector)))[_WEIGHT].numpy() for vector in vectors]
    return np.stack([(right @ part.T.astype(np.float64) @ left.T).ravel() for part in parts])


_WEIGHT = "canaries.weight"

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

BYSTANDER = -1
_PLAIN_SUM = ServerOptimizerConfig(optimizer="sgd", learning_rate=1.0)


@dataclass(frozen=True, eq=False)
class CanaryUnits:
    """Hold the incidence of m units of canaries and of bystanders.

    Attributes:
        ownership: the users, sentences and entities; entity i is that of unit i.
        unit_of_sentence: the unit of each sentence, :data:`BYSTANDER` for real text, int64 (S,).
        texts: the sentences of the bystanders, one user each.
        units: m.
    """

    ownership: Ownership
    unit_of_sentence: Ints
    texts: Sequence[str]
    units: int

    @classmethod
    def of(cls, scenario: Scenario, units: int, texts: Sequence[str]) -> CanaryUnits:
        """Return ``units`` copies of ``scenario`` and a user for each of ``texts``."""
        mentions = [scenario.entity_sentences] * scenario.entity_users
        users = [*mentions, scenario.user_sentences] if scenario.user_sentences else mentions
        with_entity = np.arange(sum(users)) < sum(mentions)
        counts = np.concatenate([np.tile(users, units), np.ones(len(texts))]).astype(np.int64)
        unit = np.repeat(np.arange(units), sum(users))
        mentioned = np.concatenate([np.tile(with_entity, units), np.zeros(len(texts), dtype=np.bool_)])
        unit_of_sentence = np.concatenate([unit, np.full(len(texts), BYSTANDER)]).astype(np.int64)
        ownership = Ownership(
            user_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            entity_offsets=np.concatenate([[0], np.cumsum(mentioned)]).astype(np.int64),
            entity_ids=unit_of_sentence[mentioned].astype(np.int32),
            num_entities=units,
        )
        return cls(ownership, unit_of_sentence, tuple(texts), units)

    def examples(self, model: LanguageModel) -> Examples:
        """Return the sentences of all units and bystanders, in the tokens of ``model``."""
        canaries = [canary_tokens(model, unit) for unit in range(self.units)]
        real = [example.tokens for example in model.encode(list(self.texts))]
        sentences = [canaries[unit] for unit in self.unit_of_sentence if unit != BYSTANDER] + real
        offsets = np.concatenate([[0], np.cumsum([len(tokens) for tokens in sentences])]).astype(np.int64)
        return Examples(EncodedSplit(np.concatenate(sentences).astype(np.int32), offsets))

    def keep(self, selection: Selection, included: Bools) -> Selection:
        """Return the selection without the sentences of units that are left out.

        Args:
            selection: the product's selection.
            included: whether each unit is included, bool (m,).
        """
        kept = np.append(included, True)[self.unit_of_sentence[selection.sentences]]  # the last is BYSTANDER's
        owner = np.repeat(np.arange(len(selection.users)), selection.counts)
        counts = np.bincount(owner[kept], minlength=len(selection.users))
        return replace(selection, sentences=selection.sentences[kept], counts=counts)


@dataclass(frozen=True, eq=False)
class Releases:
    """Hold the releases of T rounds along the canaries' directions.

    Attributes:
        along: the noisy sums along each unit's direction, in user clips, float64 (T, m).
        clips: c of each round, float64 (T,).
    """

    along: Floats
    clips: Floats


@dataclass(frozen=True, eq=False)
class RealCorpus:
    """Hold what a node needs for real rounds.

    Attributes:
        model: the real model; rounds change its parameters.
        ownership: the users, sentences and entities.
        examples: the sentences.
        keep: returns the selection without the sentences that add nothing in this corpus.
    """

    model: LanguageModel
    ownership: Ownership
    examples: Examples
    keep: Callable[[Selection], Selection]


Observer = Callable[[int, Floats, BoundedSumStrategy, list[TrainReply]], None]
"""Called with each round, its noisy sum, float64 (d,), the strategy, and the replies of the round before any noise."""


def run_rounds(corpus: RealCorpus, plan: PrivacyPlan, seed: int, observe: Observer) -> None:
    """Run the rounds of ``plan`` on one node, with the product's strategy, selection and bounded sums.

    Args:
        corpus: model, incidence and sentences.
        plan: the mechanism and the number of rounds.
        seed: root seed of every draw.
        observe: reads every round.
    """
    federation = Federation("{}", corpus.ownership.sentences_per_user, seed)
    strategy = BoundedSumStrategy(
        RoundParts(plan, federation, build_optimizer(_PLAIN_SUM, corpus.model.num_parameters))
    )
    initial, replies = corpus.model.get_vector(), list[TrainReply]()
    last = [initial.astype(np.float64)]

    def read(server_round: int, arrays: ArrayRecord) -> None:
        vector = arrays_to_vector(arrays).astype(np.float64)
        if server_round:
            observe(server_round, (vector - last[0]) * plan.mechanism.denominator, strategy, replies)
            replies.clear()
        last[0] = vector

    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy.start(grid, vector_to_arrays(initial), num_rounds=plan.rounds, evaluate_fn=read)

    run_inline(server, _client(corpus, replies), num_nodes=1)
    corpus.model.set_vector(initial)


def _client(corpus: RealCorpus, replies: list[TrainReply]) -> ClientApp:
    client = ClientApp()

    @client.train(TRAIN_ACTION)
    def train(message: Message, context: Context) -> Message:
        request = TrainRequest.from_message(message)
        selection = select_for(request.rule, corpus.ownership, request.users, request.round_seed)
        corpus.model.set_vector(request.vector)
        replies.append(
            training.bounded_sum(
                corpus.model, corpus.examples, corpus.keep(selection), request.rule, request.round_seed
            )
        )
        return Message(replies[-1].to_record(request), reply_to=message)

    return client


def release_along_canaries(
    model: LanguageModel,
    units: CanaryUnits,
    included: Bools,
    plan: PrivacyPlan,
    seed: int,
    progress: Callable[[int], None] = lambda server_round: None,
) -> Releases:
    """Run all rounds of ``plan`` and return what they release along the canaries.

    Args:
        model: a model with at least m canaries (:func:`~fl_sim.auditing.real_rounds.canary_federation.canary_model`).
        units: the users and entities.
        included: whether each unit is included, bool (m,).
        plan: the mechanism and the number of rounds.
        seed: root seed of every draw of the rounds.
        progress: called with every round that is released.
    """
    mechanism = plan.mechanism
    clips: list[float] = []
    rows: list[Floats] = []

    def observe(server_round: int, noisy: Floats, strategy: BoundedSumStrategy, replies: list[TrainReply]) -> None:
        adapted = strategy.tally.clip_norm
        clips.append(mechanism.clip_norm if adapted is None else adapted)
        rows.append(along_canaries(model, noisy[None])[0, : units.units] / mechanism.user_clip(clips[-1]))
        progress(server_round)

    corpus = RealCorpus(
        model, units.ownership, units.examples(model), lambda selection: units.keep(selection, included)
    )
    run_rounds(corpus, plan, seed, observe)
    return Releases(np.array(rows), np.array(clips))
