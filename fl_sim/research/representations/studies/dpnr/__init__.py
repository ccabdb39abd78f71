"""DPNR's tables and figures on its AG set."""
