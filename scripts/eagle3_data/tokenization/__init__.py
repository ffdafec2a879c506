"""Conversations to token ids and loss masks: nothing is lost without a reason, and no token is trained on a
guess."""
