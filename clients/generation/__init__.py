"""Text from a trained next-word model: a sampler with one random stream per text, and batches of texts.

Text made by a model is post-processing of it: it reads the model's parameters and public prompts alone, so a guarantee
of the model is one of the text.
"""
