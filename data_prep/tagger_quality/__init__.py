"""How well a tagger finds what a gold corpus marks."""
