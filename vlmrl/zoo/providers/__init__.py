"""What methods of the zoo need of a step beyond rewards, a file each (`vlmrl.train.stage.provide`)."""
