"""The delivery process: alerts go out to the world here, and nowhere else."""
