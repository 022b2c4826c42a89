"""A shop: customers, their orders, and the work that orders make."""
