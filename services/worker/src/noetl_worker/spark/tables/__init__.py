"""Tables as Spark executors read and write them."""
