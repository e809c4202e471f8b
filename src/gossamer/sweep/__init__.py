"""Many runs from one file: reading it, choosing trials, running them as ordinary runs, and reporting their worth."""
