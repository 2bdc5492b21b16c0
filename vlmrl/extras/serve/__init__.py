"""A checkpoint behind OpenAI's chat-completions protocol, asked as it was trained (`vlmrl serve`, docs/serving.md)."""
