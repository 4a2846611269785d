"""Commands under attack on servers of their own, and a checker that reads nothing but what they left: `make chaos-consumer`."""
