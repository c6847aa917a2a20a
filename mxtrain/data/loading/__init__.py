"""From a source to batches on a device: files, splits, order, prefetching and placing."""
