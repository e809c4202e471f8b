"""`gossamer watch`: a server that reads run folders and shows them in a browser, live.

Nothing here imports torch, and nothing but acts, keeping and views changes anything: runs are looked at from outside, through their files.
"""
