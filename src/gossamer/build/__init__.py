"""From settings to a plan and to objects, and what is refused before anything is made."""
