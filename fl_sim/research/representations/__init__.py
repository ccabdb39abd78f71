"""Private text representations: corpora, clients, server, evaluation and studies (docs/representations.md)."""
