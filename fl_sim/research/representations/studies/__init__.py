"""Published tables of private representations, made again."""
