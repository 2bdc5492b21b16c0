"""As in OSWorld."""
