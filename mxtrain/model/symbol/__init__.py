"""Networks that are known by their graph: the `-symbol.json` files of MXNet's Module API, of Gluon's `export`, of
SageMaker's built-in algorithms and of insightface."""
