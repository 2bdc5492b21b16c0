"""What each method of a stage changes, measured where it is called, and said where it is nothing (`touched.watch`)."""
