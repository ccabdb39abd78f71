"""Text to a prepared corpus: read, tag, identify entities, write users, sentences and entities to a folder."""

from fl_sim.data_prep.store.bundle import SHIPPED_CORPORA, shipped_path

__all__ = ["SHIPPED_CORPORA", "shipped_path"]
