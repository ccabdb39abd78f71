"""Text to a prepared corpus: read, tag, identify entities, write users, sentences and entities to a folder."""

from fl_sim.data_prep.bundle import bundled_path

__all__ = ["bundled_path"]
