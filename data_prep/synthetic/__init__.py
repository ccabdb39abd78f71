"""The generator of the synthetic corpus that ships."""
