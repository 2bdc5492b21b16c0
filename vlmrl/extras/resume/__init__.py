"""What only a run that goes on needs: more steps for its last stage (docs/resume.md)."""
