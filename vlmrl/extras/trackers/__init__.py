"""What a run shows to wandb, trackio, swanlab, mlflow and tensorboard (`run.trackers`, docs/view.md)."""
