"""What joins roles: protocols, and one file for each medium."""
