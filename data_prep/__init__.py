"""Text in, owned sentences out: corpora, entities, users, and the prepared folder they are kept in."""
