"""The target's own answers: what is asked, the pass in which it answers, and the samples
made of that."""
