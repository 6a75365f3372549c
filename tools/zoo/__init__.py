"""The model zoo: hundreds of architectures with random weights, compiled and compared with eager PyTorch.

`python -m tools.zoo run` runs every case in a process of its own and appends what became of it to a file of JSON lines;
`python -m tools.zoo table` writes the data of the page `docs/reference/model_zoo.md`. An architecture is one line in a
file of `families`.
"""
