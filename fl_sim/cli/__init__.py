"""The command line: a thin layer on the packages below it."""
