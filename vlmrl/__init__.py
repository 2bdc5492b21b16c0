"""vlmrl: reinforcement learning for vision-language models. Importing it costs milliseconds: nothing heavy is imported here."""

__version__ = "0.1.0"
