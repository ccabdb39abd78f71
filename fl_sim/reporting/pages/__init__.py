"""HTML pages that stand alone in one file: text, tables and pictures without scripts, fonts or other files."""
