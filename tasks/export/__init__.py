"""Parquet files beside the segments of a tier, for topics that ask for them."""
