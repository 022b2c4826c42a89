"""What a worker does with good handlers; it runs inside the test, with the verb ``work``."""
