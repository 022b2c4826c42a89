"""A shop: customers, their orders, and the jobs that ship the orders."""
