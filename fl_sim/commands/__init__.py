"""The verbs of the ``fl-sim`` command, one module each."""
