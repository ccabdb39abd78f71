"""Generate the synthetic corpus that ships."""
