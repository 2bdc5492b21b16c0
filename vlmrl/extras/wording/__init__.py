"""`vlmrl tools prompts`: a base model under several wordings of the question, before anything is trained."""
