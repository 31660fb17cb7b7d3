"""Steps in microbatches and stages."""
