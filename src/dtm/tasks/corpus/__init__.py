"""The corpus that `dtm adapt` trains on: chat rows of several parts, mixed and cut into batches."""
