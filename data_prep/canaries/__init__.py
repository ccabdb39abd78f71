"""Canaries: made-up secrets that a preparation plants in the text, to measure what models memorise of it.

* ``secret_law``: the public distribution from which secrets are drawn.
* ``planted_canaries``: the canaries of a corpus, their owners, which are included, and their file ``canaries.json``.
* ``planting``: draws canaries, and lets no sentence of the source share a user or an entity with them.
"""
