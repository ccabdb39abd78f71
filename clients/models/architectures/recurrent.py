"""The architectures ``awd-lstm`` and ``small-awd-lstm-public``, whose modules are those of
`fl_sim.clients.models.architectures.awd_lstm`; torch is loaded when one is built.

>>> sorted(AWD_LSTM.settings), sorted(SMALL_AWD_LSTM_PUBLIC.settings)
(['embedding', 'hidden', 'layers'], [])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fl_sim.clients.models.architectures.architecture import Architecture
from fl_sim.clients.models.model_names import SMALL_AWD_LSTM_PUBLIC as PUBLIC_NAME

if TYPE_CHECKING:
    from torch import nn

    from fl_sim.clients.batches import Batch, Example
    from fl_sim.clients.ghost_norms import LayerHandler
    from fl_sim.clients.models.model_spec import ModelSpec
    from fl_sim.clients.models.tokenizers import Vocabulary


PUBLIC_LSTM_FOLDER = Path(__file__).resolve().parents[2] / "assets" / PUBLIC_NAME


class RecurrentArchitecture(Architecture):
    """AWD-LSTM, with dropout masks of its own."""

    settings: ClassVar[frozenset[str]] = frozenset({"hidden", "layers", "embedding"})
    no_dropout_because: ClassVar[str | None] = None

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        from fl_sim.clients.models.architectures.awd_lstm import AwdLstm, AwdLstmConfig, AwdLstmForNextWord
        from fl_sim.clients.models.architectures.model_size import check_size

        config = AwdLstmConfig.of(spec, vocabulary.size)
        kind = AwdLstmForNextWord if output_layer else AwdLstm
        check_size(spec.name, lambda: kind(config))
        return kind(config)

    def output_layer(self, module: Any) -> nn.Module | None:
        return module.decoder

    def has_dropout(self, module: Any) -> bool:
        return _body(module).config.has_dropout

    def draw_masks(self, module: Any, examples: Sequence[Example], batch: Batch, seed: int) -> Any:
        return _body(module).draw_masks(examples, batch, seed)

    def layer_handlers(self) -> Mapping[type[nn.Module], LayerHandler]:
        from fl_sim.clients.models.architectures.awd_lstm import Recurrence, RecurrentLayer

        return {Recurrence: RecurrentLayer}

    def save(self, module: nn.Module, folder: Path, spec: ModelSpec) -> None:
        from fl_sim.clients.models.architectures import awd_lstm

        awd_lstm.save(module, folder)

    def load(self, folder: Path, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        from fl_sim.clients.models.architectures import awd_lstm

        return awd_lstm.load(folder, spec, output_layer=output_layer)


class PublicRecurrent(RecurrentArchitecture):
    """The AWD-LSTM that ships, pre-trained on public text; its sizes are its own."""

    settings: ClassVar[frozenset[str]] = frozenset()

    def build(self, spec: ModelSpec, vocabulary: Vocabulary, *, output_layer: bool) -> nn.Module:
        return self.load(PUBLIC_LSTM_FOLDER, spec, vocabulary, output_layer=output_layer)


AWD_LSTM = RecurrentArchitecture()
SMALL_AWD_LSTM_PUBLIC = PublicRecurrent()


def _body(module: Any) -> Any:
    """Return the LSTM, also where an output layer is on top of it."""
    return getattr(module, "body", module)
