"""What a loaded network is rewritten to before it runs: neighbouring layers as one kernel."""
