"""Train the named-entity pipeline that ships, and evaluate any tagger."""
