"""The models that clients train: architectures, tokenizers, trainable parameters and losses."""

from fl_sim.clients.models.architectures.architecture import Architecture

__all__ = ["Architecture"]
