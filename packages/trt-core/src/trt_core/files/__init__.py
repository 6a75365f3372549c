"""The ground of every file of this project: how one is opened, framed, parsed and replaced, whoever wrote it."""
