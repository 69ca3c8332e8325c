"""When is an alarm raised? One file for each subject."""
