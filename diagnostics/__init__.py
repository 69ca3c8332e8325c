"""Whether the reasoning still depends on the prompt, and what that means for the run."""
