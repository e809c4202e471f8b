"""Launchers: who runs where. They know nothing of RL; roles know nothing of them."""
