"""Links between roles: protocols, and one file for each medium."""
