"""The methods of the messaging service, one small module each. base.py has what they share, table.py their list."""
