"""Programs that made what ships: the bundled corpora, the tagger, the tokenizer, the list of public names."""
