"""What a batch is made of: shares from replays that store, choose and pace."""
