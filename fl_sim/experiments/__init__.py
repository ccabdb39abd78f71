"""One run from configuration to result: its plan, its guarantees, its rounds and its record."""
