"""Methods that are not ours, called on two made-up groups before anything is trained, by `vlmrl check` and `vlmrl train` (`theirs`)."""
