"""A checkpoint with a model card, as a folder for a model hub (`vlmrl publish`, docs/serving.md)."""
