"""Methods that are not ours, called on two made-up groups by `vlmrl check` before anything is trained (`trial.theirs`)."""
