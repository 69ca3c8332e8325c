"""What does the page Runs know of all runs: settings, metrics, verdicts, groups, saved views?"""
