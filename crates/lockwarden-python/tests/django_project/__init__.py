"""A small Django project, for the tests: settings come from the environment, so that child processes share them."""
