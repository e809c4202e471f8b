"""Where learners run: in this process, in turn or on threads, in processes of their own, or on the machines of a cluster."""
