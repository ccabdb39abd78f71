"""Model architectures: what each one builds, runs, tunes and saves.

>>> from fl_sim.clients.models.architectures.model_source import source_of
>>> sorted(source_of("awd-lstm").architecture.settings)
['embedding', 'hidden', 'layers']
"""
