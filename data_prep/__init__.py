"""Text in, owned sentences out: corpora, entities, users, and the prepared folder they are kept in."""

from fl_sim.data_prep.bundle import bundled_path

__all__ = ["bundled_path"]
