"""What the program asks of the system beneath it: devices, memory, streams, files and code from outside, signs of life."""
