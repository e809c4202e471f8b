"""Where learners run: in this process, in turn or on threads, or in processes of their own."""
