"""Where work is hosted: pipelines, frames, slots, and the lane that runs commands."""
